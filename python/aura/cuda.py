"""Caches in the memory of a GPU: aura.Cache(..., device="cuda").

Calls work on torch's current stream and return before the device is done, as torch's do; arrays are tensors of torch, or anything with
DLPack, on that device. What the device finds wrong (a key that is no number) is raised by the next call that waits for it:
check(), len(), fork(), decode(), save(). Nothing of a bad append is stored. One thread at a time may use a cache.
"""
from __future__ import annotations

import ctypes
import os
import sys
import threading
import weakref
from typing import Any, Sequence as Many

import numpy as np

from . import _abi
from ._arrays import Tensor, empty, is_torch, look, shaped
from ._cache import BYTES, Array, Cache, Flags, Sequence, _snapshot, _source, config_of
from ._gpu import GONE, CudaSequence, Gpu, available, index_of, set_view
from ._lib import Context, Error, Handle, Status, bad, check, context, lib, make

__all__ = ["CudaCache", "CudaSequence", "available"]

_PAGE = 256  # tokens
_FEW = 16  # queries that need no images: aura_cuda.h
_LONG = 16384  # tokens of sequences that are long: long_seqs


class CudaCache(Cache):
    """aura.Cache(..., device="cuda"): as Cache, in the memory of a GPU. q_heads must be given. Besides:

    tokens: of all sequences together, that memory is taken for at once; 0: 16 384. It grows when more come, for which the host waits;
    with budget_bytes, all the memory that it may have, it does not.
    seqs: sequences that there are to begin with; 0: 64. seq_tokens: that one can have; 0: 2^20, or what there is memory for.
    batch_invariant: a row does not depend on the rest of the batch, nor on how many queries are asked at once, bit for bit.
    """

    def __init__(self, q_heads: int, kv_heads: int, dim: int, format: str = "k4v4", *, device: Any = "cuda", tokens: int = 0,
                 seqs: int = 0, seq_tokens: int = 0, batch_invariant: bool = False, threads: int | Context | None = None, **options: Any):
        config, kept = config_of(q_heads, kv_heads, dim, format, **options)
        self._begin(context(threads), config, device, batch_invariant)
        self._create(-(-(tokens or 16384) // _PAGE), seqs or 64, seq_tokens)

    def _begin(self, ctx: Context, config: Any, device: Any, batch_invariant: bool = False) -> None:
        self._gpu, self._lock, self._context = Gpu(index_of(device)), threading.RLock(), ctx
        self._alive: weakref.WeakValueDictionary[int, CudaSequence] = weakref.WeakValueDictionary()
        self._dead: list[int] = []
        self._config = make(_abi.aura_cuda_config, cache=config, device=self._gpu.index, batch_invariant=int(batch_invariant))
        self._grows, self._moves = not config.budget_bytes, 0  # moves: how often sequences have got other numbers
        self._away: tuple | None = None
        self._arrays: dict[tuple, tuple] = {}
        self._workspaces: dict[int, tuple] = {}

    # ---- memory ------------------------------------------------------------------------------------------------------

    def _create(self, pages: int, seqs: int, seq_tokens: int = 0) -> None:
        """Makes the device's cache, with so many pages, or with what the budget holds."""
        config = self._config
        many = max(1 << 20, pages * _PAGE) if self._grows else 1 << 20 if config.cache.window else 0
        config.seqs, config.seq_tokens = seqs, seq_tokens or many
        if self._grows:
            config.cache.budget_bytes = self._bytes_for(pages)
        self._handle = self._made()
        self._read_config()
        self._pages = self._get_info().pages
        self._seqs, self._seq_tokens = seqs, config.seq_tokens or self._pages * _PAGE

    def _made(self) -> Handle:
        parent = self._context._handle
        try:
            return Handle(lib.aura_cuda_cache_create, parent.use(), ctypes.byref(self._config), destroy=lib.aura_cuda_cache_destroy,
                          parent=parent)
        except Error as error:
            if error.status != Status.OUT_OF_MEMORY or not self._gpu.torch:
                raise
            self._gpu.torch.cuda.empty_cache()  # what torch has and does not use
            return Handle(lib.aura_cuda_cache_create, parent.use(), ctypes.byref(self._config), destroy=lib.aura_cuda_cache_destroy,
                          parent=parent)

    def _bytes_for(self, pages: int) -> int:
        """What is there beside pages does not depend on their number: a cache with few of them tells."""
        budget = 1 << 20
        while True:
            self._config.cache.budget_bytes = budget
            try:
                self._handle = self._made()
                break
            except Error as error:
                if error.status != Status.OUT_OF_PAGES or budget > 1 << 40:
                    raise
                budget *= 4
        info = self._get_info()
        self._handle.close()
        return info.bytes - info.pages * info.page_bytes + pages * info.page_bytes + 4096

    def _settle(self) -> None:
        """Waits for the device, and ends the sequences that nobody holds any more."""
        self._gpu.wait()
        while self._dead:
            lib.aura_cuda_seq_release(self._use(), self._dead.pop())

    def _reserve(self, seq: CudaSequence, tokens: int) -> None:
        """Memory for `tokens` tokens of a sequence, and some more where there is some. It waits for the device only where pages are
        shared or may have left a window."""
        waits = seq.shares or self.window or self._dead
        if waits:
            self._settle()
        fair = self._pages // max(1, len(self._alive)) * _PAGE  # nobody takes ahead what others will need
        more = self._seq_tokens if self.window else min(self._seq_tokens, fair, tokens + max(1024, tokens // 8))
        for count in (more, tokens):
            if waits:
                status = lib.aura_cuda_seq_reserve(self._use(), seq.id, max(count, tokens))
            else:
                status = lib.aura_cuda_seq_reserve_on(self._use(), seq.id, max(count, tokens), self._gpu.stream())
            if not status:
                seq.reserved, seq.shares = max(count, tokens), False
                return
            if status not in (Status.OUT_OF_PAGES, Status.TOO_LARGE):
                break
        if not self._grows or status not in (Status.OUT_OF_PAGES, Status.TOO_LARGE):
            check(status)
        self._grow(self._seqs, tokens)
        self._reserve(seq, tokens)

    def _grow(self, seqs: int, tokens: int) -> None:
        """At least half as many pages again, for so many sequences, one of them of so many tokens. It is done on the device, where that
        has room for the old beside the new; otherwise, and for more sequences, by way of the host."""
        self._settle()
        info, old = self._get_info(), list(self._alive.values())
        before, pages = info.pages, info.pages + max(info.pages // 2, tokens // _PAGE + 2)
        if seqs == self._seqs and tokens <= self._seq_tokens:
            budget = info.bytes + (pages - before) * info.page_bytes + 4096
            status = lib.aura_cuda_cache_resize(self._use(), budget)
            if status != Status.OUT_OF_MEMORY:
                check(status)
                self._config.cache.budget_bytes, self._pages = budget, self._get_info().pages
                return
        host, twins = self._to_host(old)
        self._forget()
        try:
            self._create(pages, seqs, max(self._seq_tokens, 2 * tokens))
        except Error:
            self._create(before, self._seqs, self._seq_tokens)
            self._from_host(host, twins, old)
            raise
        self._from_host(host, twins, old)

    def _forget(self) -> None:
        """The device's cache, and all that belongs to it, is no more."""
        self._dead.clear()
        self._alive.clear()
        self._arrays.clear()
        self._workspaces.clear()
        self._moves += 1
        self._handle.close()

    def _host(self) -> Cache:
        """An empty cache of the CPU with this configuration."""
        config = self._get_info().config
        config.budget_bytes = 0
        parent = self._context._handle
        return Cache._of(self._context, Handle(lib.aura_cache_create, parent.use(), ctypes.byref(config), destroy=lib.aura_cache_destroy,
                                               parent=parent))

    def _to_host(self, seqs: list[CudaSequence]) -> tuple[Cache, list[Sequence]]:
        """A cache of the CPU with all sequences; those that are given, in this order. They share what they shared."""
        self._settle()
        host, pairs, n = self._host(), (_abi.aura_cuda_pair * self._seqs)(), ctypes.c_size_t()
        check(lib.aura_cuda_cache_download(self._use(), host._use(), pairs, ctypes.byref(n)))
        twins = {pair.device: Sequence(host, pair.host) for pair in pairs[: n.value]}
        return host, [twins[seq.id] for seq in seqs]

    def _from_host(self, host: Cache, twins: list[Sequence], seqs: list[CudaSequence] | None = None) -> list[CudaSequence]:
        """All sequences of a cache of the CPU: as new ones, or as those that are given."""
        pairs, n = (_abi.aura_cuda_pair * self._seqs)(), ctypes.c_size_t()
        lengths = [len(twin) for twin in twins]
        check(lib.aura_cuda_cache_upload(self._use(), host._use(), pairs, ctypes.byref(n)))
        ids = {pair.host: pair.device for pair in pairs[: n.value]}
        if seqs is None:
            seqs = [CudaSequence(self, ids[twin.id], length) for twin, length in zip(twins, lengths)]
            for seq in seqs:
                seq.shares = seq.forked = True
            return seqs
        for seq, twin in zip(seqs, twins):
            seq.id, seq.reserved, seq.shares = ids[twin.id], 0, True
            self._alive[seq.id] = seq
        return seqs

    def _replace(self, seq: CudaSequence, host: Cache, twin: Sequence) -> None:
        """A sequence becomes what one of a cache of the CPU is. The old one goes when the new one is there."""
        self._place()
        made, tokens = CudaSequence(self, self._new_id(lib.aura_cuda_seq_create)), len(twin)
        status = lib.aura_cuda_upload(self._use(), made.id, host._use(), twin.id)
        if status == Status.OUT_OF_PAGES and self._grows:
            self._grow(self._seqs, tokens)
            status = lib.aura_cuda_upload(self._use(), made.id, host._use(), twin.id)
        check(status)
        seq.id, made.id = made.id, seq.id  # `made` ends, and with it what the sequence was
        self._alive[seq.id], self._alive[made.id] = seq, made
        seq.tokens, seq.reserved, seq.shares, self._moves = tokens, 0, True, self._moves + 1

    def leave(self) -> None:
        """Gives the device's memory back: what is stored waits in the host's, and comes back with the next call."""
        with self._lock:
            if self._away is None:
                seqs = list(self._alive.values())
                self._away = (*self._to_host(seqs), seqs, self._get_info().pages)
                self._forget()

    def _use(self) -> int:
        if self._away is not None:
            (host, twins, seqs, pages), self._away = self._away, None
            self._create(pages, self._seqs, self._seq_tokens)
            self._from_host(host, twins, seqs)
        return self._handle.use()

    # ---- what there is -----------------------------------------------------------------------------------------------

    def _get_info(self) -> Any:
        info = make(_abi.aura_cuda_cache_info)
        check(lib.aura_cuda_cache_get_info(self._use(), ctypes.byref(info)))
        return info

    def __repr__(self) -> str:
        return f"<aura.Cache {self.format} on cuda:{self._gpu.index}, {self.q_heads}/{self.kv_heads} heads of {self.dim}, {self.bytes} bytes>"

    @property
    def device(self) -> str:
        return f"cuda:{self._gpu.index}"

    @property
    def bytes(self) -> int:
        """What the cache has allocated on the device, less the workspaces of calls."""
        return 0 if self._away else self._get_info().bytes

    @property
    def bits_per_value(self) -> float:
        """Of a full page, scales and reference included."""
        return self._host().bits_per_value

    def sequences(self) -> list[int]:
        """The ids of the sequences that there are."""
        return sorted(self._alive)

    def sequence(self) -> CudaSequence:
        """A new sequence without tokens."""
        with self._lock:
            return CudaSequence(self, self._new_id(lib.aura_cuda_seq_create))

    def _new_id(self, create: Any, *arguments: Any) -> int:
        self._settle()
        id = ctypes.c_uint32()
        status = create(self._use(), *arguments, ctypes.byref(id))
        check(status)
        return id.value

    def _place(self) -> None:
        """Room for one more sequence."""
        self._settle()
        if len(self._alive) >= self._seqs and self._grows:
            self._grow(2 * self._seqs, 0)

    def _fork(self, seq: Sequence, tokens: int) -> CudaSequence:
        self._place()
        made = CudaSequence(self, self._new_id(lib.aura_cuda_seq_fork, seq.id, tokens), tokens)
        for one in (seq, made):
            one.reserved, one.shares, one.forked = 0, True, True
        return made

    def select(self, seqs: Many[Sequence], which: Many[int]) -> list[CudaSequence]:
        """For beams: sequences that are seqs[which[0]], seqs[which[1]] ... One that is chosen several times is forked, in one call for all;
        those of `seqs` that nobody chose are of no use any more."""
        seqs, which = self._mine(seqs), [int(i) for i in which]
        if not all(0 <= i < len(seqs) for i in which):
            raise bad(f"which is {which}, of {len(seqs)} sequences")
        with self._lock:
            self._settle()
            while len(self._alive) + len(which) - len(set(which)) > self._seqs and self._grows:  # forks come before what ends
                self._grow(2 * self._seqs, 0)
            before, to = (ctypes.c_uint32 * len(seqs))(*[seq.id for seq in seqs]), (ctypes.c_uint32 * len(which))()
            check(lib.aura_cuda_seqs_select(self._use(), before, len(seqs), (ctypes.c_uint32 * len(which))(*which), len(which), to))
            for i, seq in enumerate(seqs):
                if i not in which:
                    self._alive.pop(seq.id, None)
                    seq.id = GONE
                elif which.count(i) > 1:
                    seq.reserved, seq.shares, seq.forked = 0, True, True
            made = []
            for i, id in zip(which, to):
                if id == seqs[i].id:
                    made.append(seqs[i])
                else:
                    made.append(CudaSequence(self, id, seqs[i].tokens))
                    made[-1].shares = made[-1].forked = True
            return made

    # ---- calls -------------------------------------------------------------------------------------------------------

    def _look(self, x: Any, what: str, shape: tuple, write: bool = False) -> Tensor:
        return shaped(look(x, what, self._gpu.index, self._gpu.stream()), what, shape, write)

    def _tensor_of(self, numbers: np.ndarray) -> Any:
        import torch

        return torch.from_numpy(numbers)

    def _ids(self, seqs: Many[CudaSequence]) -> tuple[int, Any]:
        """The numbers of sequences, on the device."""
        key = tuple(seq.id for seq in seqs)
        if key not in self._arrays:
            if len(self._arrays) > 64:
                self._arrays.clear()
            self._arrays[key] = self._gpu.ints(key)
        return self._arrays[key]

    def _room(self, seqs: Many[CudaSequence], tokens: int) -> None:
        """So that each can take so many more tokens."""
        for seq in seqs:
            if seq.tokens + tokens > seq.reserved:
                self._reserve(seq, seq.tokens + tokens)

    def append(self, seqs: Many[Sequence], k: Array | Many[Array], v: Array | Many[Array]) -> None:
        """Appends tokens to several sequences: k, v [batch, tokens, kv_heads, dim], one launch; or lists of arrays [tokens, kv_heads,
        dim], a launch for each."""
        seqs = self._mine(seqs)
        with self._lock:
            if isinstance(k, (list, tuple)) or isinstance(v, (list, tuple)):
                if len(k) != len(seqs) or len(v) != len(seqs):
                    raise bad(f"k has {len(k)} arrays, v {len(v)}, for {len(seqs)} sequences")
                rows = [[self._look(x[i], f"{name}[{i}]", (None, self.kv_heads, dim)) for x, name, dim in (
                    (k, "k", self.dim), (v, "v", self.v_dim))] for i in range(len(seqs))]
                for seq, pair in zip(seqs, rows):
                    self._append([seq], *pair, 0)
                return
            n = len(seqs)
            self._append(seqs, self._look(k, "k", (n, None, self.kv_heads, self.dim)), self._look(v, "v", (n, None, self.kv_heads, self.v_dim)), 1)

    def _append(self, seqs: list[CudaSequence], k: Tensor, v: Tensor, axis: int, starts: list[int] | None = None) -> None:
        tokens = k.shape[axis]
        if v.shape[axis] != tokens:
            raise bad(f"k has {tokens} tokens, v has {v.shape[axis]}")
        if not tokens or not seqs:
            return
        self._room(seqs, tokens)
        args = make(_abi.aura_cuda_append_args, n_seqs=len(seqs), tokens=tokens)
        args.seqs, kept = self._ids(seqs)
        set_view(args.k, k, axis)
        set_view(args.v, v, axis)
        if starts:
            args.starts, kept_too = self._gpu.ints(starts)
        check(lib.aura_cuda_append(self._use(), ctypes.byref(args), self._gpu.stream()))
        self._count(seqs, tokens, starts)

    def _count(self, seqs: list[CudaSequence], tokens: int, starts: list[int] | None) -> None:
        for i, seq in enumerate(seqs):
            seq.tokens += tokens - (starts[i] if starts else 0)

    def workspace(self, seqs: int, queries: int) -> int:
        """The place of calls that are no larger, on the current stream. That of many queries is large, and given back by the next call
        of few."""
        stream = self._gpu.stream()
        most, handle = self._workspaces.get(stream, ((0, 0), None))
        fits = handle is not None and most[0] >= seqs and most[1] >= queries and (queries > _FEW or most[1] <= _FEW)
        if not fits:
            want = max(seqs, most[0]), queries if queries > _FEW else _FEW
            if handle is not None:
                self._gpu.wait()
                handle.close()
            handle = Handle(lib.aura_cuda_workspace_create, self._use(), *want, destroy=lib.aura_cuda_workspace_destroy,
                            parent=self._handle)
            self._workspaces[stream] = want, handle
        return handle.use()

    def attend(self, seqs: Many[Sequence], q: Array | Many[Array], out: Array | Many[Array] | None = None, *, scale: float = 0,
               softcap: float = 0, window: int = 0, sinks: Array | None = None, alibi: Array | None = None, causal: bool = True,
               mask: Many[Array] | None = None, since: Any = None, until: Any = None, planes: int = 0, return_lse: bool = False) -> Any:
        """As Cache.attend(): a batch [batch, tokens, q_heads, dim] in one launch, lists of arrays in one each. mask: for each sequence
        [tokens, keys], or one array [batch, tokens, keys]. The log-sum-exp is [batch, tokens, q_heads]."""
        seqs, options = self._mine(seqs), dict(scale=scale, softcap=softcap, window=window, sinks=sinks, alibi=alibi, causal=causal,
                                               planes=planes, return_lse=return_lse)
        with self._lock:
            if isinstance(q, (list, tuple)):
                if len(q) != len(seqs):
                    raise bad(f"q has {len(q)} arrays for {len(seqs)} sequences")
                got = [self._attend([seq], 0, x, out and out[i], *(x if x is None else x[i] for x in (mask, since, until)), **options)
                       for i, (seq, x) in enumerate(zip(seqs, q))]
                return ([one[0] for one in got], [one[1] for one in got]) if return_lse else got
            return self._attend(seqs, 1, q, out, mask, since, until, **options)

    def _attend(self, seqs: list[CudaSequence], axis: int, q: Array, out: Array | None, mask: Any, since: Any, until: Any, scale: float,
                softcap: float, window: int, sinks: Any, alibi: Any, causal: bool, planes: int, return_lse: bool) -> Any:
        """axis: that of tokens: 1 of a batch, 0 of one sequence."""
        n, gpu = len(seqs), self._gpu
        query = self._look(q, "q", (n, None, self.q_heads, self.dim)[1 - axis :])
        shape = query.shape[:-1]
        result = empty(q, query.dtype, (*shape, self.v_dim), gpu.index)[0] if out is None else out
        to = self._look(result, "out", (*shape, self.v_dim), write=True)
        lse = empty(None, _abi.AURA_F32, shape, gpu.index)[0] if return_lse else None
        queries = shape[axis]
        if n and queries:
            args = make(_abi.aura_cuda_attend_args, n_seqs=n, queries=queries, scale=scale, softcap=softcap, window=window, planes=planes,
                        not_causal=int(not causal), long_seqs=int(2 * sum(seq.tokens >= _LONG for seq in seqs) > n))
            args.seqs, kept = self._ids(seqs)
            set_view(args.q, query, axis)
            set_view(args.out, to, axis)
            keep = self._extras(args, shape[: axis + 1], sinks, alibi, mask)
            for name, given in (("from", since), ("until", until)):
                if given is not None:
                    tokens = np.broadcast_to(np.asarray([x for x in given] if axis else given), (*shape[:axis], queries))
                    address, kept_too = gpu.ints(tokens.reshape(-1).tolist())
                    setattr(args, name, address)
                    keep.append(kept_too)
            if lse is not None:
                args.lse = look(lse, "lse", gpu.index).pointer
            check(lib.aura_cuda_attend(self._use(), self.workspace(n, queries), ctypes.byref(args), gpu.stream()))
            del keep
        return (result, lse) if return_lse else result

    def _extras(self, args: Any, rows: tuple, sinks: Any, alibi: Any, mask: Any) -> list:
        keep = []
        for name, given in (("sinks", sinks), ("alibi", alibi)):
            if given is not None:
                address, kept = self._gpu.floats(given, name, (self.q_heads,))
                setattr(args, name, address)
                keep.append(kept)
        if mask is not None:
            if isinstance(mask, (list, tuple)):
                mask = sys.modules["torch"].stack(list(mask)) if is_torch(mask[0]) else np.stack([np.asarray(x) for x in mask])
            args.mask_keys = np.shape(mask)[-1]
            args.mask, kept = self._gpu.floats(mask, "mask", (*rows, args.mask_keys))
            keep.append(kept)
        return keep

    def step(self, seqs: Many[Sequence], k: Array, v: Array, q: Array, out: Array | None = None, *, starts: Array | None = None,
             scale: float = 0, softcap: float = 0, window: int = 0, sinks: Array | None = None, alibi: Array | None = None,
             planes: int = 0) -> Array:
        """As Cache.step(): append() and attend() of a batch in one call."""
        seqs, gpu = self._mine(seqs), self._gpu
        n, starts = len(seqs), None if starts is None else [int(x) for x in starts]
        tensors = [self._look(x, name, (n, None, heads, dim)) for x, name, heads, dim in (
            (k, "k", self.kv_heads, self.dim), (v, "v", self.kv_heads, self.v_dim), (q, "q", self.q_heads, self.dim))]
        tokens = tensors[2].shape[1]
        if any(t.shape[1] != tokens for t in tensors):
            raise bad(f"k, v and q have {', '.join(str(t.shape[1]) for t in tensors)} tokens")
        self._check_starts(starts, n, tokens)
        result = empty(q, tensors[2].dtype, (n, tokens, self.q_heads, self.v_dim), gpu.index)[0] if out is None else out
        tensors.append(self._look(result, "out", (n, tokens, self.q_heads, self.v_dim), write=True))
        if not n or not tokens:
            return result
        args = make(_abi.aura_cuda_step_args)
        ask = args.attend
        ask.size, ask.n_seqs, ask.queries, ask.planes = ctypes.sizeof(ask), n, tokens, planes
        ask.scale, ask.softcap, ask.window = scale, softcap, window
        with self._lock:
            self._room(seqs, tokens)
            ask.seqs, kept = self._ids(seqs)
            for to, t in zip((args.k, args.v, ask.q, ask.out), tensors):
                set_view(to, t, 1)
            keep = self._extras(ask, (n, tokens), sinks, alibi, None)
            if starts:
                ask.starts, kept_too = gpu.ints(starts)
            check(lib.aura_cuda_step(self._use(), self.workspace(n, tokens), ctypes.byref(args), gpu.stream()))
            self._count(seqs, tokens, starts)
            del keep
        return result

    def append_padded(self, seqs: list[CudaSequence], k: Array, v: Array, starts: list[int] | None) -> None:
        """append() of a batch, of whose row i the first starts[i] tokens are padding, and not stored."""
        n = len(seqs)
        key, value = self._look(k, "k", (n, None, self.kv_heads, self.dim)), self._look(v, "v", (n, None, self.kv_heads, self.v_dim))
        self._check_starts(starts, n, key.shape[1])
        with self._lock:
            self._append(self._mine(seqs), key, value, 1, starts)

    @staticmethod
    def _check_starts(starts: list[int] | None, n: int, tokens: int) -> None:
        if starts and (len(starts) != n or not all(0 <= first <= tokens for first in starts)):
            raise bad(f"starts {starts} for {n} sequences and {tokens} tokens")

    def truncate(self, seqs: Many[Sequence], tokens: Many[int]) -> None:
        """Cuts sequences to their first tokens[i] tokens. Those that were never forked are cut on the stream, and nobody waits."""
        seqs, tokens = self._mine(seqs), list(tokens)
        with self._lock:
            for seq, count in zip(seqs, tokens):
                if not 0 <= count <= seq.tokens:
                    raise bad(f"{count} tokens; the sequence has {seq.tokens}")
            if self.window or any(seq.forked for seq in seqs):
                self._settle()
                for seq, count in zip(seqs, tokens):
                    check(lib.aura_cuda_seq_truncate(self._use(), seq.id, count))
                    seq.tokens, seq.reserved = count, 0
                return
            (ids, kept), (counts, kept_too) = self._ids(seqs), self._gpu.ints(tokens)
            check(lib.aura_cuda_truncate(self._use(), ids, counts, len(seqs), self._gpu.stream()))
            for seq, count in zip(seqs, tokens):
                seq.tokens = count

    # ---- files and copies --------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike, seqs: Many[Sequence] | None = None, note: bytes = b"") -> None:
        """Saves the cache, or some of its sequences, to a file, in one step: the file that a cache of the CPU writes."""
        options, kept = _snapshot(seqs and self._mine(seqs), note)
        with self._lock:
            self._settle()
            check(lib.aura_cuda_cache_save(self._use(), os.fsencode(path), ctypes.byref(options), None, None))

    def to_bytes(self, seqs: Many[Sequence] | None = None) -> bytes:
        """The bytes of the file that save() would write."""
        options, kept = _snapshot(seqs and self._mine(seqs))
        with self._lock:
            self._settle()
            count, handle = ctypes.c_size_t(), self._use()
            check(lib.aura_cuda_cache_size(handle, ctypes.byref(options), ctypes.byref(count)))
            data = ctypes.create_string_buffer(count.value)
            sink = make(_abi.aura_sink, data=ctypes.addressof(data), bytes=count.value)
            check(lib.aura_cuda_cache_write(handle, ctypes.byref(sink), ctypes.byref(options), None, None))
        return data.raw

    @classmethod
    def load(cls, file: str | os.PathLike | bytes | bytearray | memoryview, *, device: Any = "cuda",
             threads: int | Context | None = None, budget_bytes: int = 0, q_heads: int = 0, tokens: int = 0,
             seqs: int = 0) -> tuple["CudaCache", list[CudaSequence]]:
        """The cache of a file, or of the bytes of one, on a GPU, and its sequences in the order in which they were saved. A cache of
        the CPU may have learned: what it stored is read as it is, and tokens that follow are encoded without that."""
        host, twins = Cache.load(file, threads=threads)
        config = host._get_info().config
        config.budget_bytes, config.q_heads = budget_bytes, config.q_heads or q_heads
        config.flags &= ~int(Flags.LEARN)
        cache = cls.__new__(cls)
        cache._begin(host._context, config, device)
        pages = sum(-(-len(twin) // _PAGE) + 4 for twin in twins)
        cache._create(max(pages, -(-tokens // _PAGE)), max(seqs, len(twins), 64))
        return cache, cache._from_host(host, twins)

    def load_sequence(self, file: str | os.PathLike | bytes | bytearray | memoryview) -> CudaSequence:
        """A new sequence from a file that Sequence.save() wrote, or from its to_bytes()."""
        options = make(_abi.aura_snapshot_options)
        with self._lock:
            self._place()
            if isinstance(file, BYTES):
                source, held = _source(file)
                id = self._new_id(lib.aura_cuda_seq_read, ctypes.byref(source), ctypes.byref(options))
            else:
                id = self._new_id(lib.aura_cuda_seq_load, os.fsencode(file), ctypes.byref(options))
            seq = CudaSequence(self, id)
            seq.shares = seq.forked = True
            seq._info()
            return seq
