"""A GPU, and sequences in its memory; the caches that have them are in cuda.py."""
from __future__ import annotations

import ctypes
import os
import sys
from typing import TYPE_CHECKING, Any, Sequence as Many

import numpy as np

from . import _abi
from ._arrays import Tensor, empty, is_torch
from ._cache import Sequence, _snapshot
from ._lib import Error, Status, bad, check, emulated, lib, make, no_cuda

if TYPE_CHECKING:
    from .cuda import CudaCache

GONE = 0xFFFFFFFF  # the number of no sequence
_WRONG = {  # bits of a sequence, and the error that each is
    _abi.AURA_CUDA_BAD_VALUE: (Status.BAD_VALUE, "a key or value is NaN, infinite or too long"),
    _abi.AURA_CUDA_OUT_OF_PAGES: (Status.OUT_OF_PAGES, "tokens beyond what was reserved"),
    _abi.AURA_CUDA_GONE: (Status.BAD_ARGUMENT, "tokens that have left the window were needed"),
}


def available(device: Any = "cuda") -> bool:
    """Whether caches can be on that device: there is a libaura_cuda, a driver and a GPU."""
    return not no_cuda and not lib.aura_cuda_probe(index_of(device))


def index_of(device: Any) -> int:
    """The number of "cuda", "cuda:1" or a torch.device."""
    kind, _, number = str(device).partition(":")
    if kind != "cuda" or number and not number.isdigit():
        raise bad(f'device {str(device)!r}: "cpu", "cuda" and "cuda:N" are there')
    if not number and "torch" in sys.modules and not emulated and sys.modules["torch"].cuda.is_available():
        return sys.modules["torch"].cuda.current_device()
    return int(number or 0)


class Gpu:
    """Where the small arrays of calls go, and on which stream calls work: torch's. The emulated device has numpy's and none."""

    def __init__(self, index: int):
        if no_cuda:
            raise Error(Status.UNSUPPORTED, f"no caches on a GPU: {no_cuda}")
        check(lib.aura_cuda_probe(index))
        self.index, self.torch = index, None
        if not emulated:
            try:
                import torch
            except ImportError:
                raise Error(Status.UNSUPPORTED, "caches on a GPU need torch, whose memory and stream they use") from None
            self.torch, self.device = torch, torch.device("cuda", index)
            self._stream = getattr(torch._C, "_cuda_getCurrentRawStream", None) or (lambda i: torch.cuda.current_stream(i).cuda_stream)

    def stream(self) -> int:
        return self._stream(self.index) if self.torch else 0

    def wait(self) -> None:
        if self.torch:
            self.torch.cuda.synchronize(self.index)

    def ints(self, values: Many[int]) -> tuple[int, Any]:
        """Numbers on the device: their address, and who keeps them."""
        if not self.torch:
            kept = np.array(values, np.uint32)
            return kept.ctypes.data, kept
        if len(set(values)) == 1:  # written by the device: nobody waits
            kept = self.torch.full((len(values),), values[0], dtype=self.torch.int32, device=self.device)
        else:
            kept = self.torch.tensor(values, dtype=self.torch.int32, device=self.device)
        return kept.data_ptr(), kept

    def floats(self, x: Any, what: str, shape: tuple) -> tuple[int, Any]:
        """float32 in a row on the device; True and False become 0 and -inf."""
        if not self.torch:
            kept = np.asarray(x.detach().numpy() if is_torch(x) else x)
            kept = np.where(kept, np.float32(0), np.float32(-np.inf)) if kept.dtype == bool else kept
            kept = np.ascontiguousarray(kept, np.float32)
            address = kept.ctypes.data
        else:
            kept = self.torch.as_tensor(x, device=self.device).detach()
            if kept.dtype == self.torch.bool:
                kept = self.torch.zeros(kept.shape, device=self.device).masked_fill_(~kept, -float("inf"))
            kept = kept.float().contiguous()
            address = kept.data_ptr()
        if tuple(kept.shape) != shape:
            raise bad(f"{what} has shape {list(kept.shape)}: {list(shape)} was expected")
        return address, kept


class CudaSequence(Sequence):
    """A sequence of a cache on a GPU."""

    cache: "CudaCache"

    def __init__(self, cache: "CudaCache", id: int, tokens: int = 0):
        super().__init__(cache, id)
        self.tokens, self.reserved = tokens, 0  # what the host knows: the device may have refused some, which is noticed later
        self.shares = False  # pages with another: until it is reserved again it must not be appended to
        self.forked = False  # some of its pages may always be another's too
        cache._alive[id] = self

    def __del__(self):
        cache = getattr(self, "cache", None)
        if cache is not None and self.id != GONE:
            cache._dead.append(self.id)  # released by whoever uses the cache next: the collector may run on any thread

    def _info(self) -> Any:
        cache, info = self.cache, make(_abi.aura_cuda_seq_info)
        with cache._lock:
            cache._settle()
            check(lib.aura_cuda_seq_get_info(cache._use(), self.id, ctypes.byref(info)))
            self.tokens = info.tokens
            for bit, (status, text) in _WRONG.items():
                if info.status & bit:
                    check(lib.aura_cuda_seq_clear_status(cache._use(), self.id))
                    raise Error(status, f"sequence {self.id}, {info.tokens} tokens: {text}")
        return info

    def check(self) -> None:
        """Waits for the device, and raises what it has found wrong since the last time."""
        self._info()

    def decode(self, first: int = 0, tokens: int | None = None, dtype: str = "float32", out: tuple | None = None) -> tuple:
        """As Sequence.decode(): float16 and bfloat16 are written by the device, on the current stream; float32 takes the way over the
        host. New arrays are tensors of torch on the device."""
        cache = self.cache
        tokens = len(self) - first if tokens is None else tokens
        if out is None:
            if dtype not in ("float32", "float16", "bfloat16") or emulated and dtype == "bfloat16":
                raise bad(f"dtype {dtype}: float32, float16 and bfloat16 are there")
            kind = {"float32": _abi.AURA_F32, "float16": _abi.AURA_F16, "bfloat16": _abi.AURA_BF16}[dtype]
            out = tuple(empty(None, kind, (tokens, cache.kv_heads, dim), cache._gpu.index)[0] for dim in (cache.dim, cache.v_dim))
        views = [None if x is None else cache._look(x, what, (tokens, cache.kv_heads, dim), write=True)
                 for x, what, dim in zip(out, "kv", (cache.dim, cache.v_dim))]
        if not tokens:
            return out
        if any(view is not None and view.dtype == _abi.AURA_F32 for view in views):
            return self._decode_on_host(first, tokens, out)
        with cache._lock:
            args = make(_abi.aura_cuda_unpack_args, n_seqs=1, tokens=tokens, first=first)
            args.seqs, kept = cache._ids((self,))
            for to, view in zip((args.k, args.v), views):
                if view is not None:
                    set_view(to, view, 0)
            check(lib.aura_cuda_unpack(cache._use(), ctypes.byref(args), cache._gpu.stream()))
        return out

    def _decode_on_host(self, first: int, tokens: int, out: tuple) -> tuple:
        cache = self.cache
        host = cache._host()
        twin = host.sequence()
        self._info()
        check(lib.aura_cuda_download(cache._use(), self.id, host._use(), twin.id))
        for x, numbers in zip(out, twin.decode(first, tokens)):
            if isinstance(x, np.ndarray):
                x[...] = numbers
            elif x is not None:
                x.copy_(cache._tensor_of(numbers))
        return out

    def fork(self, tokens: int | None = None) -> "CudaSequence":
        """As Sequence.fork()."""
        cache = self.cache
        with cache._lock:
            return cache._fork(self, self._info().tokens if tokens is None else tokens)

    def truncate(self, tokens: int) -> None:
        """Cuts the sequence to its first `tokens` tokens."""
        self.cache.truncate([self], [tokens])

    def remove(self, first: int, tokens: int) -> None:
        """As Sequence.remove(), by way of the host: the sequence is downloaded, and what is left of it comes back. What it shared with
        others it has for itself then."""
        cache = self.cache
        with cache._lock:
            self._info()
            host = cache._host()
            twin = host.sequence()
            check(lib.aura_cuda_download(cache._use(), self.id, host._use(), twin.id))
            twin.remove(first, tokens)
            cache._replace(self, host, twin)

    def reserve(self, tokens: int) -> None:
        """Takes the memory for `tokens` tokens in all now: appends up to there do not wait for the device."""
        with self.cache._lock:
            self.cache._reserve(self, tokens)

    def save(self, path: str | os.PathLike, note: bytes = b"") -> None:
        """Saves the sequence to a file, with a note of the caller's: the file that a cache of the CPU writes."""
        options, kept = _snapshot(None, note)
        self._info()
        check(lib.aura_cuda_seq_save(self.cache._use(), self.id, os.fsencode(path), ctypes.byref(options)))

    def to_bytes(self) -> bytes:
        """The bytes of the file that save() would write."""
        options, kept = _snapshot(None)
        self._info()
        count, handle = ctypes.c_size_t(), self.cache._use()
        check(lib.aura_cuda_seq_size(handle, self.id, ctypes.byref(options), ctypes.byref(count)))
        data = ctypes.create_string_buffer(count.value)
        sink = make(_abi.aura_sink, data=ctypes.addressof(data), bytes=count.value)
        check(lib.aura_cuda_seq_write(handle, self.id, ctypes.byref(sink), ctypes.byref(options)))
        return data.raw


def set_view(to: Any, t: Tensor, tokens: int) -> None:
    """Fills an aura_cuda_view; axis `tokens` is that of tokens, and one before it that of sequences. Over one row any stride will do,
    and 0 means contiguous."""
    to.data, to.dtype = t.pointer, t.dtype
    to.token_stride = t.strides[tokens] if t.shape[tokens] > 1 else 0
    to.head_stride = t.strides[tokens + 1] if t.shape[tokens + 1] > 1 else 0
    to.seq_stride = t.strides[0] if tokens and t.shape[0] > 1 else 0
