"""A cache for transformers' generate(), held in 2 to 8 bits per number, and attention straight from it.

    from aura.transformers import AuraCache
    model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="aura")
    model.generate(**inputs, past_key_values=AuraCache(model.config, "k4v4"))

How it works: transformers hands keys and values to the cache, and what the cache returns to an attention function. AuraCache returns
tensors that only say where they come from (`Lazy`). The attention function "aura", which this module registers together with a mask of
that name, finds the cache in them and asks it; so does torch's scaled_dot_product_attention (attn_implementation="sdpa"). Anybody else
who looks at such a tensor gets its numbers, decoded, and a log message says so once.

A prompt attends to its own keys and values as they are, and is encoded after that (prefill="codes": before). Padding on the left
is never stored. There are no gradients.
"""
from __future__ import annotations

import ctypes
import dataclasses
import functools
import json
import logging
import math
import os
import zipfile
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import causal_mask_function, sdpa_mask

from . import _abi
from ._cache import Cache as Store, Flags, Profile, Sequence
from ._lib import Error, Status, bad, check, emulated, lib, make

__all__ = ["AuraCache"]

_DTYPES = {torch.float32: _abi.AURA_F32, torch.float16: _abi.AURA_F16, torch.bfloat16: _abi.AURA_BF16}
_BYTES = {torch.float32: 4, torch.float16: 2, torch.bfloat16: 2}
_SDPA = torch.nn.functional.scaled_dot_product_attention
_WINDOW_QUERIES = 512  # most tokens of a call where a window frees memory; longer prompts go in parts
_TAUGHT = 512  # tokens of a prompt whose queries a cache learns from
_log = logging.getLogger(__name__)
_said: set[str] = set()

# How often a layer attended to codes, to a prompt's own numbers, with a mask, or had to be decoded: for tests and the curious.
counts = {"attend": 0, "exact": 0, "masked": 0, "decoded": 0}


def _say_once(what: str) -> None:
    if what not in _said:
        _said.add(what)
        _log.warning("aura: %s", what)


@dataclasses.dataclass(frozen=True)
class _Settings:
    format: str
    threads: int
    prefill: str
    rollback: int
    planes: int
    profile: Profile | None
    learn: bool
    device: str | None = None
    max_tokens: int = 0
    ratio: int = 1  # query heads to a KV head, as far as the configuration says it

    def __deepcopy__(self, memo: dict) -> "_Settings":
        return self

    def balance(self, index: int | None, kv_heads: int, dim: int) -> Any:
        if self.profile is None or index is None or self.format.startswith(("kf", "kb")):
            return None
        balance = self.profile[index]
        return balance if balance is not None and balance.shape == (kv_heads, dim) else None


# ---- tensors that say where they come from ---------------------------------------------------------------------------

def _shown(x: Any) -> Any:
    """The numbers of what is lazy, in a list of arguments."""
    if isinstance(x, (Lazy, LazyMask)):
        return x.real()
    if isinstance(x, (list, tuple)):
        return type(x)(map(_shown, x))
    return x


class Lazy(torch.Tensor):
    """The keys or values of a layer, [batch, kv_heads, tokens, dim], up to position `end`. They are numbers only where somebody looks."""

    @staticmethod
    def __new__(cls, layer: "AuraLayer", side: str, length: int, size: tuple, repeat: tuple = ()):
        self = torch.Tensor._make_wrapper_subclass(cls, size, dtype=layer.dtype, device=layer.device)
        self.layer, self.side, self.end, self.length, self.repeat = layer, side, layer.length, length, repeat
        return self

    def __init__(self, *arguments: Any):
        pass

    def __repr__(self, **options: Any) -> str:
        return f"Lazy({self.side}, {tuple(self.shape)})"

    def real(self) -> torch.Tensor:
        _say_once('keys and values are decoded for whoever looks at them; attn_implementation="aura" does not, where a model lets it')
        out = self.layer.decoded(self.side, self.end - self.length, self.end)
        for function, arguments in self.repeat:
            out = function(out, *arguments)
        return out

    def _repeated(self, function: Any, arguments: tuple, size: tuple) -> "Lazy":
        return Lazy(self.layer, self.side, self.length, size, (*self.repeat, (function, arguments)))

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, arguments: tuple = (), options: dict | None = None) -> Any:
        options = options or {}
        name = getattr(function, "__name__", "")
        if name in ("__get__", "size", "dim", "stride", "numel", "is_floating_point", "__len__", "is_contiguous"):
            with torch._C.DisableTorchFunctionSubclass():
                return function(*arguments, **options)
        if function is _SDPA:
            out = _sdpa(*arguments, **options)
            if out is not None:
                return out
        elif name == "to" and isinstance(arguments[0], Lazy) and all(
                isinstance(x, (torch.dtype, torch.device)) and x in (arguments[0].layer.dtype, arguments[0].layer.device)
                for x in (*arguments[1:], *options.values())):
            return arguments[0]
        elif name in ("__getitem__", "expand", "reshape"):  # transformers' repeat_kv() before sdpa: heads that are there several times
            out = _repeat(name, function, *arguments, **options)
            if out is not None:
                return out
        return function(*_shown(list(arguments)), **{key: _shown(value) for key, value in options.items()})

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, arguments: tuple = (), options: dict | None = None) -> Any:
        return function(*_shown(list(arguments)), **{key: _shown(value) for key, value in (options or {}).items()})


def _repeat(name: str, function: Any, self: Any, *arguments: Any, **options: Any) -> Lazy | None:
    whole, steps = slice(None), len(self.repeat) if isinstance(self, Lazy) else -1
    with torch._C.DisableTorchFunctionSubclass():
        size = tuple(self.shape)
    if steps == 0 and name == "__getitem__" and arguments[0] == (whole, whole, None, whole, whole):
        return self._repeated(function, arguments, (*size[:2], 1, *size[2:]))
    if steps == 1 and name == "expand" and len(arguments) == 5 and not options:
        return self._repeated(function, arguments, arguments)
    if steps == 2 and name == "reshape" and arguments == (size[0], size[1] * size[2], *size[3:]):
        return self._repeated(function, arguments, arguments)
    return None


def _sdpa(query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False, *,
          scale: float | None = None, enable_gqa: bool = False) -> torch.Tensor | None:
    """torch's own attention function, with lazy keys and values. None: it must see the numbers."""
    if not (type(key) is Lazy and type(value) is Lazy) or type(query) is not torch.Tensor and not isinstance(query, torch.nn.Parameter):
        return None
    layer, tokens = key.layer, query.shape[2]
    if key.end != layer.length or dropout_p or not layer.is_initialized or query.device != layer.device or len(key.repeat) not in (0, 3):
        return None
    if attn_mask is not None and (attn_mask.dim() != 4 or attn_mask.shape[1] != 1):
        return None
    if layer.fresh and tokens > 1 and tokens == key.length and layer.settings.prefill == "exact":
        k, v = layer.pending
        counts["exact"] += 1
        groups = query.shape[1] // layer.kv_heads
        if key.repeat:
            k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        out = _SDPA(query, k, v, attn_mask=attn_mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)
        layer.teach(query, None)
        return out
    causal = is_causal or attn_mask is None and tokens == 1
    if attn_mask is not None and not layer.takes_masks:
        return None
    if is_causal and tokens != key.length or not causal and attn_mask is None:
        return None
    return layer.attend(query, scale, mask=attn_mask, length=key.length).transpose(1, 2)


class LazyMask(torch.Tensor):
    """What the mask function gives to the attention function: which keys are hidden, [batch, 1, queries, keys], as numbers only
    where somebody looks."""

    @staticmethod
    def __new__(cls, asked: dict):
        size = (asked["batch_size"], 1, asked["q_length"], asked["kv_length"])
        self = torch.Tensor._make_wrapper_subclass(cls, size, dtype=torch.bool, device=asked.get("device", "cpu"))
        self.asked, self._sdpa, self._skip, self.window = asked, (), (), _window_of(asked["mask_function"])
        return self

    def __init__(self, asked: dict):
        pass

    def __repr__(self, **options: Any) -> str:
        return "LazyMask"

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, arguments: tuple = (), options: dict | None = None) -> Any:
        return function(*_shown(list(arguments)), **{key: _shown(value) for key, value in (options or {}).items()})

    def real(self) -> torch.Tensor:
        return sdpa_mask(**{**self.asked, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False})

    @property
    def sdpa(self) -> torch.Tensor | None:
        """What "sdpa" would get."""
        if self._sdpa == ():
            self._sdpa = sdpa_mask(**self.asked)
        return self._sdpa

    @property
    def skip(self) -> Any:
        """How many of the newest tokens of each row are padding on its left; None: of no row; False: it hides other tokens too."""
        if self._skip == ():
            self._skip = self._find_skip()
        return self._skip

    def _find_skip(self) -> Any:
        mask, old = self.asked["attention_mask"], self.asked["q_offset"]
        if self.window is None:
            return False
        if mask is None:
            return None
        end = old + self.asked["q_length"]
        if mask.dim() != 2 or mask.shape[1] < end:
            return False
        mask = mask[:, :end].bool()
        if mask.all():
            return None
        left = (mask.int().cumsum(1) == 0).sum(1)
        if not bool(((~mask).sum(1) == left).all()):
            return False
        skip = [max(0, int(n) - old) for n in left]
        return skip if any(skip) else None


def _window_of(function: Any) -> int | None:
    """The window of one of transformers' mask functions: 0 for a causal one, None for one that does something else."""
    if function is causal_mask_function:
        return 0
    if getattr(function, "__qualname__", "") == "and_masks.<locals>.and_mask":
        parts = dict(zip(function.__code__.co_freevars, (cell.cell_contents for cell in function.__closure__)))["mask_functions"]
        if len(parts) == 2 and parts[1] is causal_mask_function and parts[0].__qualname__ == "sliding_window_overlay.<locals>.inner_mask":
            return int(parts[0].__closure__[0].cell_contents)
    return None


# ---- layers --------------------------------------------------------------------------------------------------------

class _Step:
    """The struct of a layer's calls, made once: a step like the last one only sets the addresses."""

    def __init__(self, seqs: list[Sequence], planes: int):
        self.seqs = (ctypes.c_uint32 * len(seqs))(*[seq.id for seq in seqs])
        self.args = make(_abi.aura_step_args, seqs=ctypes.addressof(self.seqs), n_seqs=len(seqs))
        self.options = make(_abi.aura_attend_options, planes=planes)
        self.k, self.v, self.q, self.out = self.args.k, self.args.v, self.args.q, self.args.out
        self.at = ctypes.byref(self.args), ctypes.byref(self.options)
        self.known: tuple | None = None  # what the tensors of the last step looked like, where they could be read as they were
        self.size: tuple = ()  # of its output
        self.given: tuple = ()

    def reshape(self, k: torch.Tensor | None, v: torch.Tensor | None, query: torch.Tensor, out: torch.Tensor) -> None:
        args = self.args
        args.tokens, args.q_heads = query.shape[2], query.shape[1]
        args.q_seq_stride, args.out_seq_stride = query.stride(0), out.stride(0)
        _set(self.q, query, 2, 1)
        _set(self.out, out, 1, 2)
        if k is not None:
            args.k_seq_stride, args.v_seq_stride = k.stride(0), v.stride(0)
            _set(self.k, k, 2, 1)
            _set(self.v, v, 2, 1)

    def run(self, store: int, k: torch.Tensor | None, v: torch.Tensor | None, query: torch.Tensor, out: torch.Tensor, given: tuple) -> None:
        self.k.data, self.v.data = (None, None) if k is None else (k.data_ptr(), v.data_ptr())
        self.q.data, self.out.data = query.data_ptr(), out.data_ptr()
        if given != self.given:
            self.options.scale, self.options.softcap, self.options.window, self.options.sinks = self.given = given
        check(lib.aura_step(store, *self.at))


class _GpuStep:
    """The same for a layer on a GPU, on torch's stream."""

    def __init__(self, store: Any, seqs: list[Any], planes: int):
        self.store, self.seqs, self.moves = store, seqs, -1
        self.args = make(_abi.aura_cuda_step_args)
        self.ask = self.args.attend
        self.ask.size, self.ask.n_seqs, self.ask.planes = ctypes.sizeof(self.ask), len(seqs), planes
        self.k, self.v, self.q, self.out = self.args.k, self.args.v, self.ask.q, self.ask.out
        self.at = ctypes.byref(self.args)
        self.known: tuple | None = None
        self.size: tuple = ()
        self.given: tuple = ()

    def reshape(self, k: torch.Tensor | None, v: torch.Tensor | None, query: torch.Tensor, out: torch.Tensor) -> None:
        self.ask.queries = query.shape[2]
        if query.shape[1] != self.store.q_heads:
            raise Error(Status.UNSUPPORTED, f"queries of {query.shape[1]} heads: on a GPU the cache was made for {self.store.q_heads}; "
                                            "give the model's configuration to AuraCache")
        _set(self.q, query, 2, 1)
        _set(self.out, out, 1, 2)
        self.q.seq_stride, self.out.seq_stride = query.stride(0), out.stride(0)
        if k is not None:
            _set(self.k, k, 2, 1)
            _set(self.v, v, 2, 1)
            self.k.seq_stride, self.v.seq_stride = k.stride(0), v.stride(0)

    def run(self, handle: int, k: torch.Tensor | None, v: torch.Tensor | None, query: torch.Tensor, out: torch.Tensor, given: tuple,
            skip: list[int] | None = None) -> None:
        store, ask, tokens = self.store, self.ask, self.ask.queries
        if k is None:
            self.k.data = self.v.data = None
        else:
            self.k.data, self.v.data = k.data_ptr(), v.data_ptr()
            if any(seq.tokens + tokens > seq.reserved for seq in self.seqs):
                store._room(self.seqs, tokens)
                handle = store._use()
        if self.moves != store._moves:  # its sequences have other numbers
            (ask.seqs, self.kept), self.moves = store._ids(self.seqs), store._moves
        self.q.data, self.out.data = query.data_ptr(), out.data_ptr()
        if given != self.given:
            ask.scale, ask.softcap, ask.window, ask.sinks = self.given = given
        ask.starts, kept = store._gpu.ints(skip) if skip else (None, None)
        ask.long_seqs = self.seqs[0].tokens >= 16384
        check(lib.aura_cuda_step(handle, store.workspace(len(self.seqs), tokens), self.at, store._gpu.stream()))
        if k is not None:
            store._count(self.seqs, tokens, skip)


def _looks(k: torch.Tensor, v: torch.Tensor, query: torch.Tensor) -> tuple:
    return query.shape, query.stride(), k.stride(), v.stride(), query.dtype, k.dtype, v.dtype


def _set(view: Any, tensor: torch.Tensor, token_axis: int, head_axis: int) -> None:
    """Strides of an aura_input or aura_view; over one row any will do, and 0 means contiguous."""
    view.dtype = _DTYPES[tensor.dtype]
    view.token_stride = tensor.stride(token_axis) if tensor.shape[token_axis] > 1 else 0
    view.head_stride = tensor.stride(head_axis) if tensor.shape[head_axis] > 1 else 0


def _rowwise(x: torch.Tensor) -> torch.Tensor:
    """[batch, heads, tokens, dim] as the library reads it: numbers of a head side by side."""
    if x.dtype not in _DTYPES:
        x = x.float()
    if x.stride(-1) != 1 or any(n > 1 and stride == 0 for n, stride in zip(x.shape, x.stride())):
        return x.contiguous()
    return x


def _added(mask: torch.Tensor) -> torch.Tensor:
    """A mask as numbers that are added to logits: 0, or -inf where it is False, or the least number of a dtype."""
    if mask.dtype == torch.bool:
        return torch.zeros(mask.shape, device=mask.device).masked_fill_(~mask, -math.inf)
    mask = mask.float()
    return mask.masked_fill(mask < -1e30, -math.inf)


class AuraLayer(CacheLayerMixin):
    """A layer of an AuraCache: a sequence of an aura.Cache for each row of the batch."""

    is_compileable = False
    is_croppable = True
    is_sliding = False
    supports_early_init = False

    def __init__(self, settings: _Settings, window: int = 0, index: int | None = None):
        self.settings, self.index, self.sliding_window = settings, index, window
        self.is_sliding = bool(window)
        self._clear()

    def _clear(self) -> None:
        self.store: Store | None = None
        self.seqs: list[Sequence] = []
        self.pads: list[int] = []  # tokens at the beginning of each row that were never stored
        self.length = self.rows = 0
        self.gpu: str | None = None  # the device of a cache on a GPU
        self.leaving = False
        self.pending: tuple | None = None  # keys and values of the last update(), until somebody says which of them are padding
        self.is_initialized = False
        self._step: _Step | None = None
        self.taught = False

    def __repr__(self) -> str:
        return f"AuraLayer({self.settings.format}, {self.length} tokens)"

    # What transformers asks.

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return self.sliding_window or -1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        old = min(self.length, self.sliding_window - 1) if self.sliding_window else self.length
        return old + query_length, self.length - old

    def _whole(self, side: str) -> Lazy | None:
        if not self.is_initialized:
            return None
        tokens = min(self.length, self.sliding_window - 1) if self.sliding_window else self.length
        return Lazy(self, side, tokens, (self.rows, self.kv_heads, tokens, self.k_dim if side == "k" else self.v_dim))

    @property
    def keys(self) -> Lazy | None:
        return self._whole("k")

    @property
    def values(self) -> Lazy | None:
        return self._whole("v")

    @property
    def fresh(self) -> bool:
        """Whether all there is has been given by the last update()."""
        return self.pending is not None and self.pending[0].shape[2] == self.length

    @property
    def takes_masks(self) -> bool:
        """On a GPU a mask has nothing to say about what a window has let go."""
        return not (self.gpu and self.sliding_window)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        device = key_states.device
        if device.type not in ("cpu", "cuda"):
            raise Error(Status.UNSUPPORTED, f"keys are on {device}: AuraCache holds those of a model on the CPU or a GPU of CUDA")
        self.dtype, self.device, self.gpu = key_states.dtype, device, str(device) if device.type == "cuda" else self.settings.device
        self.rows, self.kv_heads, self.k_dim, self.v_dim = *key_states.shape[:2], key_states.shape[3], value_states.shape[3]
        self.pads = [0] * self.rows
        self.is_initialized = True
        if not self.gpu:  # a GPU must know how many query heads there are: it waits for a query
            self._open(0, 0)

    def _open(self, q_heads: int, tokens: int) -> None:
        """Makes the store; tokens: of a row, that there are to begin with."""
        if self.store is not None:
            return
        settings, window, options = self.settings, self.sliding_window, {}
        if self.gpu:
            ahead = settings.max_tokens or tokens + max(1024, tokens // 8)
            each = window + _WINDOW_QUERIES + 512 if window else max(tokens, ahead)
            options = dict(device=self.gpu, tokens=self.rows * (-(-each // 256) * 256), seqs=self.rows + 1)
        self.store = Store(q_heads, self.kv_heads, self.k_dim, settings.format, v_dim=self.v_dim, window=window,
                           max_queries=_WINDOW_QUERIES if window else 0, rollback=settings.rollback,
                           flags=Flags.LEARN if settings.learn and not self.gpu else 0,
                           balance=settings.balance(self.index, self.kv_heads, self.k_dim), threads=settings.threads, **options)
        self.seqs = [self.store.sequence() for _ in range(self.rows)]

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[Lazy, Lazy]:
        if self.pending is not None:
            self.flush()
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        batch, heads, tokens, _ = key_states.shape
        if batch != self.rows or heads != self.kv_heads:
            raise bad(f"keys of {batch} rows and {heads} heads for a cache of {self.rows} and {self.kv_heads}")
        length = self.get_mask_sizes(tokens)[0]
        self.pending, self.length = (key_states, value_states), self.length + tokens
        return (Lazy(self, "k", length, (batch, heads, length, self.k_dim)), Lazy(self, "v", length, (batch, heads, length, self.v_dim)))

    # Tokens in, attention and tokens out.

    def teach(self, query: torch.Tensor, skip: list[int] | None) -> None:
        """A prompt is stored, and asked for its first tokens on the way, so that a cache which learns has seen queries before it
        encodes the rest. The answers do not count."""
        k, v = self.pending
        tokens = min(_TAUGHT, k.shape[2])
        if not self.settings.learn or self.gpu or self.taught or k.shape[2] != query.shape[2]:
            self.flush(skip)
            return
        self.taught, self.pending = True, None
        rows = [_rowwise(x[:, :, :tokens]) for x in (k, v, query)]
        out = torch.empty((len(self.seqs), tokens, query.shape[1], self.v_dim), dtype=rows[2].dtype)
        try:
            self._ask(*rows, out, (self.k_dim**-0.5, 0.0, 0, None), skip and [min(n, tokens) for n in skip])
        except Error:
            self._recount()
            raise
        if k.shape[2] > tokens:
            self.pending = k[:, :, tokens:], v[:, :, tokens:]
            self.flush(skip and [max(0, n - tokens) for n in skip])

    def flush(self, skip: list[int] | None = None) -> None:
        """Stores what the last update() was given, less the first skip[i] tokens of row i, which are padding."""
        if self.pending is None:
            return
        self._open(self.settings.ratio * self.kv_heads, self.pending[0].shape[2])
        (k, v), self.pending = self.pending, None
        k, v = _rowwise(k), _rowwise(v)
        step = _WINDOW_QUERIES if self.sliding_window else k.shape[2]
        try:
            for first in range(0, k.shape[2], max(1, step)):
                self._append(k[:, :, first : first + step], v[:, :, first : first + step],
                             skip and [min(max(0, n - first), step) for n in skip])
        except Error:
            self._recount()
            raise

    def _append(self, k: torch.Tensor, v: torch.Tensor, skip: list[int] | None) -> None:
        jobs, tokens = (_abi.aura_append_job * len(self.seqs))(), k.shape[2]
        if self.gpu:
            self.store.append_padded(self.seqs, k.transpose(1, 2), v.transpose(1, 2), skip)
            self.pads = [old + new for old, new in zip(self.pads, skip)] if skip else self.pads
            return
        n = 0
        for i, seq in enumerate(self.seqs):
            first = min(skip[i], tokens) if skip else 0
            if first == tokens:
                continue
            job, row_k, row_v = jobs[n], k[i, :, first:], v[i, :, first:]
            job.size, job.seq, job.tokens = ctypes.sizeof(job), seq.id, tokens - first
            for view, row in ((job.k, row_k), (job.v, row_v)):
                _set(view, row, 1, 0)
                view.data = row.data_ptr()
            n += 1
        check(lib.aura_append(self.store._use(), jobs, n))
        if skip:
            self.pads = [old + min(new, tokens) for old, new in zip(self.pads, skip)]

    def attend(self, query: torch.Tensor, scale: float | None = None, softcap: float = 0, sinks: torch.Tensor | None = None,
               skip: list[int] | None = None, mask: torch.Tensor | None = None, length: int = 0, window: int = 0) -> torch.Tensor:
        """query [batch, q_heads, tokens, dim] -> [batch, tokens, q_heads, v_dim], over all tokens, those of the last update() included.

        mask: [batch or 1, 1, tokens, length] for the last `length` positions; None: causal."""
        counts["attend"] += 1
        if self.store is None:
            self._open(query.shape[1], self.length)
        if self.pending is not None and self.pending[0].shape[2] != query.shape[2]:  # of an encoder: all see all
            self.flush()
        try:
            return self._attend(query, scale, softcap, sinks, skip, mask, length, window)
        except Error:
            self._recount()
            raise
        finally:
            if self.leaving:
                self._leave()

    def _recount(self) -> None:
        """After an error: what is stored counts, and nothing else."""
        self.length = self.pads[0] + len(self.seqs[0])

    def _attend(self, query: torch.Tensor, scale: float | None, softcap: float, sinks: torch.Tensor | None, skip: list[int] | None,
                mask: torch.Tensor | None, length: int, window: int) -> torch.Tensor:
        held = self._sinks = None if sinks is None else sinks.detach().float().contiguous()
        given = (scale or self.k_dim**-0.5, softcap or 0.0, window, None if held is None else held.data_ptr())
        (k, v), self.pending = self.pending or (None, None), None
        step = self._step
        if step is not None and mask is None and skip is None and k is not None and step.known == _looks(k, v, query):
            out = torch.empty(step.size, dtype=query.dtype, device=self.device)  # all as in the last step: the way of every token that is generated
            step.run(self.store._use(), k, v, query, out, given)
            return out
        looks = None if k is None else _looks(k, v, query)
        dtype, tokens, rows = query.dtype, query.shape[2], _rowwise(query)
        same = rows is query
        if k is not None:
            row_k, row_v = _rowwise(k), _rowwise(v)
            same, k, v = same and row_k is k and row_v is v, row_k, row_v
        out = torch.empty((len(self.seqs), tokens, query.shape[1], self.v_dim), dtype=rows.dtype, device=self.device)
        most = _WINDOW_QUERIES if self.sliding_window and k is not None else tokens
        if mask is None and tokens <= most:
            self._ask(k, v, rows, out, given, skip)
            self._step.known, self._step.size = looks if same else None, out.shape
        else:
            self._ask_in_parts(k, v, rows, out, given, skip, mask, length, most)
        return out if out.dtype == dtype else out.to(dtype)

    def _ask(self, k: torch.Tensor | None, v: torch.Tensor | None, query: torch.Tensor, out: torch.Tensor, given: tuple,
             skip: list[int] | None) -> None:
        """Append and attend in one call. Without k the tokens are there already."""
        if self._step is None:
            self._step = _GpuStep(self.store, self.seqs, self.settings.planes) if self.gpu else _Step(self.seqs, self.settings.planes)
        step = self._step
        step.known = None
        step.reshape(k, v, query, out)
        if self.gpu:
            step.run(self.store._use(), k, v, query, out, given, skip)
            if skip and k is not None:
                self.pads = [old + new for old, new in zip(self.pads, skip)]
            return
        starts = (ctypes.c_uint32 * len(skip))(*skip) if skip else None
        step.args.starts = ctypes.addressof(starts) if skip else None
        step.run(self.store._use(), k, v, query, out, given)
        step.args.starts = None
        if skip and k is not None:
            self.pads = [old + new for old, new in zip(self.pads, skip)]

    def _ask_in_parts(self, k: torch.Tensor | None, v: torch.Tensor | None, query: torch.Tensor, out: torch.Tensor, given: tuple,
                      skip: list[int] | None, mask: torch.Tensor | None, length: int, most: int) -> None:
        """Masks, and prompts that are longer than a window's calls may be."""
        tokens = query.shape[2]
        for first in range(0, tokens, most):
            part = slice(first, min(first + most, tokens))
            count = part.stop - first
            hidden = skip and [min(max(0, n - first), count) for n in skip]
            ks, vs = (None, None) if k is None else (k[:, :, part], v[:, :, part])
            if mask is None:
                self._ask(ks, vs, query[:, :, part], out[:, part], given, hidden)
                continue
            if k is not None:
                self._append(ks, vs, hidden)
            end = self.length - tokens + part.stop if k is not None else self.length
            self._ask_masked(query[:, :, part], out[:, part], given, mask[:, :, part], end, length)

    def _ask_masked(self, query: torch.Tensor, out: torch.Tensor, given: tuple, mask: torch.Tensor, end: int, length: int) -> None:
        """Positions below `end` are stored. The mask is over the last `length` positions of all."""
        if self.gpu:
            self._ask_masked_gpu(query, out, given, mask[:, 0, :, : length - (self.length - end)])
            return
        asks, options, keep = (_abi.aura_attend_job * len(self.seqs))(), make(_abi.aura_attend_options, planes=self.settings.planes), []
        options.scale, options.softcap, options.window, options.sinks = given
        for i, (ask, seq) in enumerate(zip(asks, self.seqs)):
            row_q, row_out = query[i], out[i]
            ask.size, ask.seq, ask.queries, ask.q_heads = ctypes.sizeof(ask), seq.id, query.shape[2], query.shape[1]
            _set(ask.q, row_q, 1, 0)
            _set(ask.out, row_out, 0, 1)
            ask.q.data, ask.out.data = row_q.data_ptr(), row_out.data_ptr()
            keep.append(self._hide(ask, seq, mask[i if mask.shape[0] > 1 else 0, 0], end - self.pads[i], end, length))
        check(lib.aura_attend(self.store._use(), asks, len(asks), ctypes.byref(options)))

    def _ask_masked_gpu(self, query: torch.Tensor, out: torch.Tensor, given: tuple, mask: torch.Tensor) -> None:
        """mask: [batch or 1, tokens, keys], of all positions that are stored. Every query sees those, less what the mask hides."""
        counts["masked"] += 1
        mask = _added(mask)
        scale, softcap, window, _ = given
        self.store.attend(self.seqs, query.transpose(1, 2), out, scale=scale, softcap=softcap, window=window, sinks=self._sinks,
                          causal=False, mask=mask.expand(len(self.seqs), -1, -1), planes=self.settings.planes)

    def _hide(self, ask: Any, seq: Sequence, mask: torch.Tensor, stored: int, end: int, length: int) -> Any:
        """A row's mask [queries, length]: what it says of the tokens that are stored. Every query sees those, less what the mask hides."""
        counts["masked"] += 1
        first = max(0, self.length - length - (end - stored))  # of the stored tokens, the first that the mask knows
        if self.sliding_window:
            first = max(first, seq.first)
        mask = mask[:, length - (self.length - end) - (stored - first) : length - (self.length - end)]
        mask = _added(mask).contiguous()
        since, until = torch.full((len(mask),), first), torch.full((len(mask),), stored)
        ask.mask, ask.mask_keys = mask.data_ptr(), mask.shape[1]
        setattr(ask, "from", since.data_ptr())
        ask.until = until.data_ptr()
        return mask, since, until

    def attend_plain(self, query: torch.Tensor, scale: float | None, softcap: float, sinks: torch.Tensor | None, skip: list[int] | None,
                     window: int) -> torch.Tensor:
        """A prompt's attention to its own numbers, as they are: with caps and sinks, which torch's function does not have."""
        k, v = self.pending
        layer = AuraLayer(dataclasses.replace(self.settings, format="kf32vf32", profile=None, learn=False))
        layer.update(k, v)
        out = layer.attend(query, scale, softcap, sinks, skip, window=window)
        counts["attend"] -= 1
        self.teach(query, skip)
        return out

    def decoded(self, side: str, first: int, end: int) -> torch.Tensor:
        """Positions [first, end) of all rows, [batch, kv_heads, tokens, dim]; 0 where padding was and what a window has let go."""
        self.flush()
        counts["decoded"] += 1
        k = side == "k"
        plain = self.dtype if self.dtype in _DTYPES else torch.float32
        out = torch.zeros(self.rows, self.kv_heads, end - first, self.k_dim if k else self.v_dim, dtype=plain, device=self.device)
        for i, seq in enumerate(self.seqs):
            begin = max(first - self.pads[i], seq.first if self.sliding_window else 0, 0)
            tokens = end - self.pads[i] - begin
            if tokens > 0:
                row = out[i, :, begin + self.pads[i] - first :].transpose(0, 1)
                seq.decode(begin, tokens, out=(row, None) if k else (None, row))
        return out.to(self.dtype)

    # What generate() does with it.

    def crop(self, tokens_to_remove: int) -> None:
        """Removes the last -tokens_to_remove tokens; a number above 0 is the length to keep, as transformers once had it."""
        if tokens_to_remove > 0:
            tokens_to_remove = min(0, tokens_to_remove - self.length)
        if tokens_to_remove == 0 or not self.is_initialized:
            return
        self.flush()
        self.length = max(0, self.length + tokens_to_remove)
        keep = [max(0, self.length - pad) for pad in self.pads]
        self.pads = [min(pad, self.length) for pad in self.pads]
        if self.gpu:
            self.store.truncate(self.seqs, keep)
            return
        for seq, tokens in zip(self.seqs, keep):
            seq.truncate(tokens)

    def _take(self, rows: list[int]) -> None:
        """Row i becomes what row rows[i] was. One that is there several times is forked: its memory stays shared."""
        self.flush()
        if rows == list(range(len(self.seqs))):
            return
        if self.gpu:
            self.seqs = self.store.select(self.seqs, rows)
            self.pads, self._step, self.rows = [self.pads[row] for row in rows], None, len(rows)
            return
        taken: set[int] = set()
        seqs = []
        for row in rows:
            seqs.append(self.seqs[row].fork() if row in taken else self.seqs[row])
            taken.add(row)
        self.seqs, self.pads, self._step, self.rows = seqs, [self.pads[row] for row in rows], None, len(seqs)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        if self.length:
            self._take(beam_idx.tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.length:
            self._take([row for row in range(len(self.seqs)) for _ in range(repeats)])

    def batch_select_indices(self, indices: Any) -> None:
        if self.length:
            self._take(torch.arange(len(self.seqs))[indices].tolist())

    def reset(self) -> None:
        self._clear()

    def offload(self) -> None:
        """On a GPU: what is stored goes to the memory of the host, as it is, once the attention of this step is done."""
        self.leaving = bool(self.gpu)
        if self.leaving and self.pending is None:
            self._leave()

    def prefetch(self) -> None:
        """Brings it back, if it was there."""
        if self.gpu and self.store is not None:
            self.store._use()

    def _leave(self) -> None:
        self.leaving = False
        if self.store is not None:
            self.store.leave()

    def __deepcopy__(self, memo: dict) -> "AuraLayer":
        self.flush()
        twin = AuraLayer(self.settings, self.sliding_window, self.index)
        memo[id(self)] = twin
        if self.is_initialized:
            for name in ("store", "dtype", "device", "gpu", "rows", "kv_heads", "k_dim", "v_dim", "length", "is_initialized"):
                setattr(twin, name, getattr(self, name))
            twin.seqs, twin.pads = [seq.fork() for seq in self.seqs], list(self.pads)
        return twin

    # Files.

    def _saved(self) -> tuple[dict, bytes]:
        self.flush()
        about = dict(window=self.sliding_window, index=self.index, length=self.length, pads=self.pads)
        if not self.is_initialized:
            return about, b""
        about.update(kv_heads=self.kv_heads, k_dim=self.k_dim, v_dim=self.v_dim, dtype=str(self.dtype).partition(".")[2])
        return about, self.store.to_bytes(self.seqs)

    @classmethod
    def _loaded(cls, settings: _Settings, about: dict, data: bytes) -> "AuraLayer":
        layer = cls(settings, about["window"], about["index"])
        if data:
            layer.gpu = settings.device
            layer.store, layer.seqs = Store.load(data, threads=settings.threads, device=layer.gpu or "cpu")
            layer.length, layer.pads, layer.rows, layer.is_initialized = about["length"], about["pads"], len(layer.seqs), True
            layer.kv_heads, layer.k_dim, layer.v_dim = about["kv_heads"], about["k_dim"], about["v_dim"]
            layer.dtype = getattr(torch, about["dtype"])
            layer.device = torch.device(layer.store.device if layer.gpu and not emulated else "cpu")
        return layer


class AuraCache(Cache):
    """A cache for generate(past_key_values=...) of any decoder model of transformers, on the CPU or a GPU.

    config: the model's; it says which layers have a window, whose memory is then given back. None: no layer has.
    format: of `aura.formats()`.
    threads: that attention uses; None: as many as torch.
    prefill: "exact": a prompt attends to its own numbers as they are; "codes": to what is stored.
    rollback: tokens that crop() takes back without loss, 1 to 224; 0: 16.
    profile: an `aura.Profile`, or the path of one.
    learn: each layer finds out which directions its queries look at, from the first tokens of a prompt, and encodes the keys that
    follow so that errors there are small. What is stored then depends on what was asked. Not on a GPU.
    device: None: where the keys are. max_tokens: of a row, that a GPU's memory is taken for at once; it takes more when more come.
    offloading: of a model on a GPU: layers wait in the memory of the host until it is their turn.
    """

    def __init__(self, config: Any = None, format: str = "k4v4", *, threads: int | None = None, prefill: str = "exact", rollback: int = 0,
                 planes: int = 0, profile: Profile | str | os.PathLike | None = None, learn: bool = True, device: Any = None,
                 max_tokens: int = 0, offloading: bool = False, offload_only_non_sliding: bool = True):
        if prefill not in ("exact", "codes"):
            raise bad(f'prefill is {prefill!r}: "exact" and "codes" are there')
        if profile is not None and not isinstance(profile, Profile):
            profile = Profile.load(profile)
        device = None if device is None or str(device) == "cpu" else str(device)
        self.settings = _Settings(format, threads or torch.get_num_threads(), prefill, rollback, planes, profile, learn, device, max_tokens,
                                  _ratio_of(config))
        Store(1, 1, 64, format, threads=1)  # a format that is none says so here
        layers = [] if config is None else list(map(self._layer, *zip(*enumerate(_plain_layers(config)))))
        if layers:
            super().__init__(layers=layers, offloading=offloading, offload_only_non_sliding=offload_only_non_sliding)
            if not any(isinstance(layer, AuraLayer) for layer in layers):
                _say_once(f"no layer of this model can be held: they are {', '.join(sorted({type(x).__name__ for x in layers}))}")
        else:
            super().__init__(layer_class_to_replicate=functools.partial(AuraLayer, self.settings), offloading=offloading,
                             offload_only_non_sliding=offload_only_non_sliding)

    def _layer(self, index: int, layer: Any) -> Any:
        """Layers of keys and values alone are ours; those with other states stay what transformers made them."""
        if type(layer) is DynamicLayer:
            return AuraLayer(self.settings, 0, index)
        if type(layer) is DynamicSlidingWindowLayer:
            return AuraLayer(self.settings, layer.sliding_window, index)
        return layer

    @property
    def bytes(self) -> int:
        """What the keys and values take."""
        return sum(layer.store.bytes for layer in self.layers if isinstance(layer, AuraLayer) and layer.store is not None)

    def save(self, path: str | os.PathLike) -> None:
        """Saves the cache to a file: a zip archive with a snapshot of aura's for each layer."""
        others = {type(layer).__name__ for layer in self.layers if not isinstance(layer, AuraLayer)}
        if others:
            raise Error(Status.UNSUPPORTED, f"layers with other states cannot be saved: {', '.join(sorted(others))}")
        saved = [layer._saved() for layer in self.layers]
        about = dict(version=1, format=self.settings.format, layers=[facts for facts, _ in saved])
        part = f"{os.fspath(path)}.part"
        with zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as file:
            file.writestr("about.json", json.dumps(about))
            for i, (_, data) in enumerate(saved):
                file.writestr(f"layer.{i}", data)
        os.replace(part, path)

    @classmethod
    def load(cls, path: str | os.PathLike, config: Any = None, **options: Any) -> "AuraCache":
        """The cache that was saved; `config` and options as when it was made."""
        try:
            with zipfile.ZipFile(path) as file:
                about = json.loads(file.read("about.json"))
                if about["version"] != 1:
                    raise Error(Status.UNSUPPORTED, f"{path}: version {about['version']}")
                datas = [file.read(f"layer.{i}") for i in range(len(about["layers"]))]
        except (zipfile.BadZipFile, KeyError, ValueError) as error:
            raise Error(Status.BAD_FILE, f"{path}: {error}") from None
        cache = cls(config, about["format"], **options)
        if cache.layers and len(cache.layers) != len(datas):
            raise bad(f"{path} has {len(datas)} layers, the model {len(cache.layers)}")
        cache.layers = [AuraLayer._loaded(cache.settings, facts, data) for facts, data in zip(about["layers"], datas)]
        return cache

    def __iter__(self):
        for layer in self.layers:
            yield layer.keys, layer.values, None


def _plain_layers(config: Any) -> list:
    """The layers that transformers would make for this model: it knows best, and versions differ."""
    return _DynamicCache(config=config).layers


def _ratio_of(config: Any) -> int:
    config = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
    heads = getattr(config, "num_attention_heads", None) or 1
    return max(1, heads // (getattr(config, "num_key_value_heads", None) or heads))


_DynamicCache = DynamicCache  # tests put AuraCache in its place


# ---- the attention function and its mask -------------------------------------------------------------------------------

def _decode(module: Any, query: torch.Tensor, key: Any, value: Any, mask: Any, scaling: float | None, softcap: float | None,
            sinks: torch.Tensor | None, kwargs: dict) -> tuple:
    """Attention over decoded numbers, in torch, with whatever was asked for."""
    key, value = _shown(key), _shown(value)
    weights_wanted = kwargs.pop("output_attentions", False)
    if softcap is None and sinks is None and not weights_wanted:
        return sdpa_attention_forward(module, query, key, value, mask.sdpa if isinstance(mask, LazyMask) else mask, scaling=scaling, **kwargs)
    if isinstance(mask, LazyMask):
        mask = mask.real()
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    logits = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap:
        logits = torch.tanh(logits / softcap) * softcap
    if kwargs.get("position_bias") is not None:
        logits = logits + kwargs["position_bias"]
    if mask is not None:
        logits = logits.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else logits + mask[..., : key.shape[2]]
    if sinks is not None:
        logits = torch.cat([logits, sinks.reshape(1, -1, 1, 1).expand(*logits.shape[:3], 1)], -1)
    weights = torch.softmax(logits.float(), -1)[..., : key.shape[2]].nan_to_num().to(query.dtype)
    return (weights @ value).transpose(1, 2).contiguous(), weights if weights_wanted else None


def attention(module: Any, query: torch.Tensor, key: Any, value: Any, attention_mask: Any, scaling: float | None = None,
              dropout: float = 0.0, sliding_window: int | None = None, softcap: float | None = None, s_aux: torch.Tensor | None = None,
              **kwargs: Any) -> tuple:
    """The attention function "aura" of transformers: query [batch, q_heads, tokens, dim] -> [batch, tokens, q_heads, v_dim]."""
    lazy = type(key) is Lazy and type(value) is Lazy and not key.repeat
    if not lazy or key.end != key.layer.length or dropout or kwargs.get("position_bias") is not None or kwargs.get("output_attentions"):
        return _decode(module, query, key, value, attention_mask, scaling, softcap, s_aux, {**kwargs, "dropout": dropout})
    layer, mask, tokens = key.layer, attention_mask, query.shape[2]
    made = type(mask) is LazyMask
    fits = mask.asked["kv_length"] == key.length if made else mask is None or mask.shape[1] == 1 and mask.shape[3] == key.length
    if not fits or query.shape[1] % layer.kv_heads:
        return _decode(module, query, key, value, mask, scaling, softcap, s_aux, kwargs)
    if made:
        window, skip = mask.window or 0, mask.skip
        plain = skip is not False
    else:
        causal = kwargs.get("is_causal")
        causal = getattr(module, "is_causal", True) if causal is None else causal
        window, skip, plain = sliding_window or 0, None, mask is None and (causal or tokens == 1)
    if tokens > 1 and layer.fresh and tokens == key.length and layer.settings.prefill == "exact":
        exact = _exact(module, layer, query, mask, scaling, softcap, s_aux, skip if plain else None, window, plain, kwargs)
        if exact is not None:
            return exact, None
    if plain:
        return layer.attend(query, scaling, softcap, s_aux, skip, window=window), None
    if not layer.takes_masks:
        return _decode(module, query, key, value, mask, scaling, softcap, s_aux, kwargs)
    if mask is None:
        mask = torch.ones((1, 1, tokens, key.length), dtype=torch.bool, device=query.device)
    return layer.attend(query, scaling, softcap, s_aux, mask=mask.real() if made else mask, length=key.length), None


def _exact(module: Any, layer: AuraLayer, query: torch.Tensor, mask: Any, scaling: float | None, softcap: float | None,
           sinks: torch.Tensor | None, skip: list[int] | None, window: int, plain: bool, kwargs: dict) -> torch.Tensor | None:
    """A prompt over its own numbers; None: what is asked for is neither in torch nor without a mask."""
    if softcap is None and sinks is None:
        counts["exact"] += 1
        k, v = layer.pending
        out = sdpa_attention_forward(module, query, k, v, mask.sdpa if isinstance(mask, LazyMask) else mask, scaling=scaling, **kwargs)[0]
        layer.teach(query, skip)
        return out
    if plain:
        counts["exact"] += 1
        return layer.attend_plain(query, scaling, softcap, sinks, skip, window)
    return None


def mask(**asked: Any) -> Any:
    """The mask function "aura" of transformers."""
    if isinstance(asked.get("q_offset"), torch.Tensor):
        return sdpa_mask(**asked)  # a static cache's: its length is a tensor that changes later
    return LazyMask(asked)


AttentionInterface.register("aura", attention)
AttentionMaskInterface.register("aura", mask)
