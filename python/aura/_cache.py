"""Caches and sequences. Arrays are [tokens, heads, dim], or [batch, tokens, heads, dim] for several sequences in one call."""
from __future__ import annotations

import ctypes
import enum
import os
from typing import Any, Callable, Sequence as Many

import numpy as np

from . import _abi
from ._arrays import Tensor, empty, floats, is_torch, look, shaped
from ._lib import Context, Handle, Owner, bad, check, context, lib, make

Array = Any  # of numpy, of torch (CPU), or anything with __dlpack__: float32, float16 or bfloat16, strided or not


class Flags(enum.IntFlag):
    """Parts of the codec that can be switched off, `doc/numerics.md` shows what each is worth; and LEARN, which is switched on."""

    NO_REFERENCE = _abi.AURA_NO_REFERENCE
    NO_PINNED = _abi.AURA_NO_PINNED
    NO_ROLLBACK = _abi.AURA_NO_ROLLBACK
    NO_OPEN = _abi.AURA_NO_OPEN
    NO_SEARCH = _abi.AURA_NO_SEARCH
    LEARN = _abi.AURA_LEARN


def format_of(name: str) -> Any:
    out = _abi.aura_format()
    check(lib.aura_format_parse(name.encode(), ctypes.byref(out)))
    return out


def name_of(format: Any) -> str:
    name = ctypes.create_string_buffer(16)
    check(lib.aura_format_name(format, name))
    return name.value.decode()


def triangle(dim: int) -> int:
    """Numbers of a metric: the lower triangle of a matrix, by rows."""
    return dim * (dim + 1) // 2


def config_of(q_heads: int, kv_heads: int, dim: int, format: str | None = None, *, v_dim: int = 0, window: int = 0, keep_first: int = 0,
              max_queries: int = 0, rollback: int = 0, flags: int = 0, seed: int = 0, balance: Array | None = None,
              v_balance: Array | None = None, k_metric: Array | None = None, v_metric: Array | None = None,
              budget_bytes: int = 0) -> tuple[Any, Any]:
    """An aura_config, and what it points to."""
    wide = v_dim or dim
    keep = {name: floats(x, name, (kv_heads, width)) for name, x, width in (
        ("balance", balance, dim), ("v_balance", v_balance, wide), ("k_metric", k_metric, triangle(dim)),
        ("v_metric", v_metric, triangle(wide))) if x is not None}
    for name, value in (("q_heads", q_heads), ("kv_heads", kv_heads), ("dim", dim), ("v_dim", v_dim), ("window", window),
                        ("keep_first", keep_first), ("max_queries", max_queries), ("rollback", rollback)):
        if not 0 <= value < 2**32:
            raise bad(f"{name} is {value}")
    config = make(_abi.aura_config, q_heads=q_heads, kv_heads=kv_heads, k_dim=dim, v_dim=v_dim, window=window,
                  keep_first=keep_first, max_queries=max_queries, rollback=rollback, flags=int(flags), seed=seed,
                  budget_bytes=budget_bytes, **{name: x.ctypes.data for name, x in keep.items()})
    if format is not None:
        config.format = format_of(format)
    return config, keep


def _view(to: Any, t: Tensor, first: int) -> None:
    """Fills an aura_input or aura_view from axes `first` (tokens) and `first` + 1 (heads) of a tensor."""
    to.data, to.dtype = t.pointer, t.dtype
    # 0 means contiguous, and any stride over one row is as good
    to.token_stride = t.strides[first] if t.shape[first] > 1 else 0
    to.head_stride = t.strides[first + 1] if t.shape[first + 1] > 1 else 0


def _rows(x: Array | Many[Array], n: int, what: str, heads: int | None, dim: int, write: bool = False) -> list[Tensor]:
    """n tensors [tokens, heads, dim] of a batch [n, tokens, heads, dim] or a list of n arrays."""
    if isinstance(x, (list, tuple)):
        if len(x) != n:
            raise bad(f"{what} has {len(x)} arrays for {n} sequences")
        return [shaped(look(a, f"{what}[{i}]"), f"{what}[{i}]", (None, heads, dim), write) for i, a in enumerate(x)]
    t = shaped(look(x, what), what, (n, None, heads, dim), write)
    step = t.strides[0] * (2 if t.dtype != _abi.AURA_F32 else 4)
    return [Tensor(t.pointer + i * step, t.dtype, t.shape[1:], t.strides[1:], t.owner) for i in range(n)]


def _snapshot(seqs: Many["Sequence"] | None, note: bytes = b"", budget_bytes: int = 0) -> tuple[Any, Any]:
    ids = None if seqs is None else (ctypes.c_uint32 * max(1, len(seqs)))(*[s.id for s in seqs])
    kept = ctypes.create_string_buffer(note, len(note)) if note else None
    options = make(_abi.aura_snapshot_options, budget_bytes=budget_bytes, note_bytes=len(note),
                   note=ctypes.addressof(kept) if kept else None)
    if ids is not None:
        options.seqs, options.n_seqs = ctypes.addressof(ids), len(seqs)
    return options, (ids, kept)


def _written(size: Callable, write: Callable, *arguments: Any) -> bytes:
    """A snapshot in memory."""
    *who, options = arguments
    count = ctypes.c_size_t()
    check(size(*who, options, ctypes.byref(count)))
    data = ctypes.create_string_buffer(count.value)
    sink = make(_abi.aura_sink, data=ctypes.addressof(data), bytes=count.value)
    check(write(*who, ctypes.byref(sink), options))
    return data.raw


BYTES = bytes, bytearray, memoryview


def _source(data: Any) -> tuple[Any, Any]:
    held = np.frombuffer(data, np.uint8)
    return make(_abi.aura_source, data=held.ctypes.data, bytes=held.size), held


class Sequence:
    """A sequence of a cache: tokens that were appended, and what attends to them. It ends when nobody holds it any more."""

    def __init__(self, cache: "Cache", id: int, owner: Any = None):
        self.cache, self.id, self._owner = cache, id, owner  # owner: who releases it, if not this object

    def __del__(self):
        cache = getattr(self, "cache", None)
        if cache is not None and self._owner is None and cache._handle.usable():
            lib.aura_seq_release(cache._handle.pointer, self.id)

    def __reduce__(self):
        raise bad("a Sequence cannot be pickled: save() it to a file, or take its to_bytes()")

    def __copy__(self):
        return self.fork()

    def __deepcopy__(self, memo: dict):
        return self.fork()

    def _info(self) -> Any:
        info = make(_abi.aura_seq_info)
        check(lib.aura_seq_get_info(self.cache._use(), self.id, ctypes.byref(info)))
        return info

    def __len__(self) -> int:
        return self._info().tokens

    def __repr__(self) -> str:
        return f"<aura.Sequence {self.id} of {len(self)} tokens>"

    @property
    def closed(self) -> int:
        """Tokens from here on are held in f16: truncate() to it or above loses nothing."""
        return self._info().closed

    @property
    def first(self) -> int:
        """Tokens from here on are there; with a window, those before are gone (except keep_first)."""
        return self._info().first

    def append(self, k: Array, v: Array) -> None:
        """Appends tokens: k [tokens, kv_heads, dim], v [tokens, kv_heads, v_dim]."""
        self.cache.append([self], [k], [v])

    def attend(self, q: Array, out: Array | None = None, **options: Any) -> Array:
        """The attention of q [tokens, q_heads, dim] to this sequence: [tokens, q_heads, v_dim], in q's dtype. The queries are those of
        the newest tokens; options are those of Cache.attend()."""
        if "mask" in options and options["mask"] is not None:
            options["mask"] = [options["mask"]]
        for name in ("since", "until"):
            if options.get(name) is not None:
                options[name] = [options[name]]
        got = self.cache.attend([self], [q], None if out is None else [out], **options)
        return (got[0][0], got[1][0]) if isinstance(got, tuple) else got[0]

    def decode(self, first: int = 0, tokens: int | None = None, dtype: str = "float32", out: tuple | None = None) -> tuple:
        """Tokens [first, first + tokens) as attention sees them: (k [tokens, kv_heads, dim], v [tokens, kv_heads, v_dim]), new arrays of
        numpy, or `out`, a pair of arrays (either may be None) of numpy or torch."""
        cache = self.cache
        tokens = len(self) - first if tokens is None else tokens
        if out is None:
            if dtype not in ("float32", "float16"):
                raise bad(f"dtype {dtype}: numpy has float32 and float16; give bfloat16 arrays as `out`")
            out = (np.empty((tokens, cache.kv_heads, cache.dim), dtype), np.empty((tokens, cache.kv_heads, cache.v_dim), dtype))
        views = []
        for x, what, dim in zip(out, "kv", (cache.dim, cache.v_dim)):
            view = _abi.aura_view()
            if x is not None:
                _view(view, shaped(look(x, what), what, (tokens, cache.kv_heads, dim), write=True), 0)
            views.append(view)
        if tokens:
            check(lib.aura_cache_decode(cache._use(), self.id, first, tokens, ctypes.byref(views[0]), ctypes.byref(views[1])))
        return out

    def fork(self, tokens: int | None = None) -> "Sequence":
        """A sequence that begins with the first `tokens` tokens of this one (None: all) and shares their memory."""
        return self.cache._fork(self, len(self) if tokens is None else tokens)

    def truncate(self, tokens: int) -> None:
        """Cuts the sequence to its first `tokens` tokens."""
        check(lib.aura_truncate(self.cache._use(), self.id, tokens))

    def remove(self, first: int, tokens: int) -> None:
        """Removes tokens [first, first + tokens); those after them move down."""
        check(lib.aura_seq_remove(self.cache._use(), self.id, first, tokens))

    def reserve(self, tokens: int) -> None:
        """Takes the memory for `tokens` tokens in all now."""
        check(lib.aura_seq_reserve(self.cache._use(), self.id, tokens))

    def save(self, path: str | os.PathLike, note: bytes = b"") -> None:
        """Saves the sequence to a file, with a note of the caller's."""
        options, kept = _snapshot(None, note)
        check(lib.aura_seq_save(self.cache._use(), self.id, os.fsencode(path), ctypes.byref(options)))

    def to_bytes(self) -> bytes:
        """The bytes of the file that save() would write."""
        options, kept = _snapshot(None)
        return _written(lib.aura_seq_size, lib.aura_seq_write, self.cache._use(), self.id, ctypes.byref(options))


class Cache(Owner):
    """The keys and values of one attention layer, for any number of sequences.

    q_heads, kv_heads, dim: of the model; dim is 1 to 512. q_heads 0: every call of attend() says it.
    format: "k4v4", "k8v4", "kf16v3" ... or a preset, "balanced"; `aura.formats()` lists them.
    v_dim: of the values; 0: dim.
    window: a token is seen by itself and by the window - 1 tokens after it, and memory beyond is used again. 0: all stay.
    max_queries: with a window, most tokens of a call and sequence; 0: 512. keep_first: tokens that all see, however old.
    rollback: tokens that truncate() can take back without loss, 1 to 224; 0: 16.
    balance: [kv_heads, dim] factors on keys, from `aura.calibrate`; v_balance: [kv_heads, v_dim], on values.
    k_metric, v_metric: [kv_heads, dim * (dim + 1) / 2]: what errors cost those who read them; `Profile.options` gives all four.
    budget_bytes: what the cache may allocate; 0: no limit.
    threads: how many work on a call (None: all that this process may use), or an `aura.Context`.
    device: "cuda", "cuda:1": in the memory of that GPU; see `aura.cuda`, which has further arguments.

    Calls release the GIL. On one sequence, several threads may read at once, or one may change it. Results do not depend on threads.
    """

    def __new__(cls, *arguments: Any, device: Any = "cpu", **options: Any) -> "Cache":
        if cls is Cache and str(device) != "cpu":
            from .cuda import CudaCache as cls
        return object.__new__(cls)

    def __init__(self, q_heads: int, kv_heads: int, dim: int, format: str = "k4v4", *, threads: int | Context | None = None,
                 device: Any = "cpu", **options: Any):
        config, kept = config_of(q_heads, kv_heads, dim, format, **options)
        self._context = context(threads)
        parent = self._context._handle
        self._handle = Handle(lib.aura_cache_create, parent.use(), ctypes.byref(config), destroy=lib.aura_cache_destroy, parent=parent)
        self._read_config()

    @classmethod
    def _of(cls, ctx: Context, handle: Handle) -> "Cache":
        cache = cls.__new__(cls)
        cache._context, cache._handle = ctx, handle
        cache._read_config()
        return cache

    def _use(self) -> int:
        return self._handle.use()

    def _get_info(self) -> Any:
        info = make(_abi.aura_cache_info)
        check(lib.aura_cache_get_info(self._use(), ctypes.byref(info)))
        return info

    def _read_config(self) -> None:
        config = self._get_info().config
        self.q_heads, self.kv_heads, self.dim, self.v_dim = config.q_heads, config.kv_heads, config.k_dim, config.v_dim
        self.format, self.window, self.max_queries = name_of(config.format), config.window, config.max_queries

    def __repr__(self) -> str:
        return f"<aura.Cache {self.format}, {self.q_heads}/{self.kv_heads} heads of {self.dim}, {self.bytes} bytes>"

    @property
    def bytes(self) -> int:
        """What the cache has allocated in all."""
        return lib.aura_cache_bytes(self._use())

    @property
    def bits_per_value(self) -> float:
        """Of a full page, scales and reference included."""
        return self._get_info().bits_per_value

    def info(self) -> dict:
        """The numbers of aura_cache_info: bytes, pages, seqs, tokens ..."""
        info = self._get_info()
        return {name: getattr(info, name) for name, _ in info._fields_ if name not in ("size", "config")}

    def sequences(self) -> list[int]:
        """The ids of the sequences that there are, in the order in which a file has them."""
        n = ctypes.c_size_t(0)
        check(lib.aura_cache_list(self._use(), None, ctypes.byref(n)))
        ids = (ctypes.c_uint32 * max(1, n.value))()
        check(lib.aura_cache_list(self._use(), ids, ctypes.byref(n)))
        return list(ids[: n.value])

    def sequence(self) -> Sequence:
        """A new sequence without tokens."""
        id = ctypes.c_uint32()
        check(lib.aura_seq_create(self._use(), ctypes.byref(id)))
        return Sequence(self, id.value)

    def _fork(self, seq: Sequence, tokens: int) -> Sequence:
        id = ctypes.c_uint32()
        check(lib.aura_seq_fork(self._use(), seq.id, tokens, ctypes.byref(id)))
        return Sequence(self, id.value)

    def _is(self, other: "Cache") -> bool:
        return other is self

    def _mine(self, seqs: Many[Sequence]) -> list[Sequence]:
        seqs = list(seqs)
        for seq in seqs:
            if not self._is(seq.cache):
                raise bad("a sequence of another cache")
        return seqs

    def append(self, seqs: Many[Sequence], k: Array | Many[Array], v: Array | Many[Array]) -> None:
        """Appends tokens to several sequences: to all of them or to none.

        k, v: [batch, tokens, kv_heads, dim], or a list of arrays [tokens, kv_heads, dim], one for each sequence.
        """
        seqs = self._mine(seqs)
        n = len(seqs)
        ks, vs = _rows(k, n, "k", self.kv_heads, self.dim), _rows(v, n, "v", self.kv_heads, self.v_dim)
        jobs = (_abi.aura_append_job * n)()
        for job, seq, key, value in zip(jobs, seqs, ks, vs):
            if key.shape[0] != value.shape[0]:
                raise bad(f"k has {key.shape[0]} tokens, v has {value.shape[0]}")
            job.size, job.seq, job.tokens = ctypes.sizeof(job), seq.id, key.shape[0]
            _view(job.k, key, 0)
            _view(job.v, value, 0)
        check(lib.aura_append(self._use(), jobs, n))

    def attend(self, seqs: Many[Sequence], q: Array | Many[Array], out: Array | Many[Array] | None = None, *, scale: float = 0,
               softcap: float = 0, window: int = 0, sinks: Array | None = None, alibi: Array | None = None, causal: bool = True,
               mask: Many[Array] | None = None, since: Many | None = None, until: Many | None = None, planes: int = 0,
               return_lse: bool = False) -> Any:
        """The attention of queries to several sequences, in one call.

        q: [batch, tokens, q_heads, dim], or a list of arrays [tokens, q_heads, dim]: the queries of each sequence's newest tokens.
        out: where the result goes, [batch, tokens, q_heads, v_dim] or a list; None: new arrays like q.
        scale: of logits; 0: 1 / sqrt(dim). softcap: 0: none. window: of this call; 0: the cache's.
        sinks, alibi: [q_heads] each. causal: False: every query sees all keys.
        mask: for each sequence [tokens, keys], or [q_heads, tokens, keys], added to the logits of its last `keys` keys, or of
        bool: True where a key is seen.
        since, until: for each sequence [tokens]: query i sees tokens [since[i], until[i]) and no others.
        return_lse: also the log-sum-exp, a list of arrays [tokens, q_heads].
        Returns out, a batch where q is one, otherwise a list. A row that sees nothing is 0.
        """
        seqs = self._mine(seqs)
        n = len(seqs)
        qs = _rows(q, n, "q", self.q_heads or None, self.dim)
        heads = qs[0].shape[1] if qs else 0
        result, outs = self._outs(q, qs, out, n)
        jobs, keep = (_abi.aura_attend_job * n)(), []
        for i, (job, seq, query, to) in enumerate(zip(jobs, seqs, qs, outs)):
            if to.shape[:2] != query.shape[:2]:
                raise bad(f"out has shape {list(to.shape)} for queries of shape {list(query.shape)}")
            job.size, job.seq, job.queries, job.q_heads = ctypes.sizeof(job), seq.id, query.shape[0], heads
            _view(job.q, query, 0)
            _view(job.out, to, 0)
            if mask is not None:
                keep.append(_mask(job, mask[i], query.shape[0], heads))
            for name, given in (("from", since), ("until", until)):
                if given is not None:
                    tokens = np.ascontiguousarray(np.broadcast_to(np.asarray(given[i], np.uint64), (query.shape[0],)))
                    keep.append(tokens)
                    setattr(job, name, tokens.ctypes.data)
        lse = [np.empty((query.shape[0], heads), np.float32) for query in qs] if return_lse else []
        for job, array in zip(jobs, lse):
            job.lse = array.ctypes.data
        options = make(_abi.aura_attend_options, scale=scale, softcap=softcap, window=window, not_causal=int(not causal), planes=planes)
        for name, given in (("sinks", sinks), ("alibi", alibi)):
            if given is not None:
                keep.append(floats(given, name, (heads,)))
                setattr(options, name, keep[-1].ctypes.data)
        check(lib.aura_attend(self._use(), jobs, n, ctypes.byref(options)))
        return (result, lse) if return_lse else result

    def step(self, seqs: Many[Sequence], k: Array, v: Array, q: Array, out: Array | None = None, *, starts: Array | None = None,
             scale: float = 0, softcap: float = 0, window: int = 0, sinks: Array | None = None, alibi: Array | None = None,
             planes: int = 0) -> Array:
        """append() and attend() of a batch in one call.

        k, v: [batch, tokens, kv_heads, dim]; q: [batch, tokens, q_heads, dim]: the queries of these tokens.
        starts: [batch]: the first starts[i] tokens of sequence i are padding: not stored, and their output is 0.
        Returns [batch, tokens, q_heads, v_dim].
        """
        seqs = self._mine(seqs)
        n = len(seqs)
        tensors = [shaped(look(x, name), name, (n, None, heads, dim)) for x, name, heads, dim in (
            (k, "k", self.kv_heads, self.dim), (v, "v", self.kv_heads, self.v_dim), (q, "q", self.q_heads or None, self.dim))]
        tokens, heads = tensors[2].shape[1:3]
        if any(t.shape[1] != tokens for t in tensors):
            raise bad(f"k, v and q have {', '.join(str(t.shape[1]) for t in tensors)} tokens")
        result = empty(q, tensors[2].dtype, (n, tokens, heads, self.v_dim))[0] if out is None else out
        tensors.append(shaped(look(result, "out"), "out", (n, tokens, heads, self.v_dim), write=True))
        ids, keep = (ctypes.c_uint32 * max(1, n))(*[seq.id for seq in seqs]), []
        args = make(_abi.aura_step_args, seqs=ctypes.addressof(ids), n_seqs=n, tokens=tokens, q_heads=heads)
        for name, t in zip(("k", "v", "q", "out"), tensors):
            _view(getattr(args, name), t, 1)
            setattr(args, f"{name}_seq_stride", t.strides[0] if n > 1 else 0)
        if starts is not None:
            keep.append(np.ascontiguousarray(starts, np.uint32))
            if keep[0].shape != (n,):
                raise bad(f"starts has shape {list(keep[0].shape)}: [{n}] was expected")
            args.starts = keep[0].ctypes.data
        options = make(_abi.aura_attend_options, scale=scale, softcap=softcap, window=window, planes=planes)
        for name, given in (("sinks", sinks), ("alibi", alibi)):
            if given is not None:
                keep.append(floats(given, name, (heads,)))
                setattr(options, name, keep[-1].ctypes.data)
        check(lib.aura_step(self._use(), ctypes.byref(args), ctypes.byref(options)))
        return result

    def _outs(self, q: Any, qs: list[Tensor], out: Any, n: int) -> tuple[Any, list[Tensor]]:
        if out is not None:
            return out, _rows(out, n, "out", self.q_heads or None, self.v_dim, write=True)
        if isinstance(q, (list, tuple)):
            made = [empty(x, t.dtype, (*t.shape[:2], self.v_dim)) for x, t in zip(q, qs)]
            return [array for array, _ in made], [tensor for _, tensor in made]
        array, _ = empty(q, qs[0].dtype if qs else 0, (n, *(qs[0].shape[:2] if qs else (0, 0)), self.v_dim))
        return array, _rows(array, n, "out", None, self.v_dim, write=True)

    def save(self, path: str | os.PathLike, seqs: Many[Sequence] | None = None, note: bytes = b"") -> None:
        """Saves the cache, or some of its sequences, to a file, in one step; with a note of the caller's."""
        options, kept = _snapshot(seqs and self._mine(seqs), note)
        check(lib.aura_cache_save(self._use(), os.fsencode(path), ctypes.byref(options)))

    def to_bytes(self, seqs: Many[Sequence] | None = None) -> bytes:
        """The bytes of the file that save() would write."""
        options, kept = _snapshot(seqs and self._mine(seqs))
        return _written(lib.aura_cache_size, lib.aura_cache_write, self._use(), ctypes.byref(options))

    @classmethod
    def load(cls, file: str | os.PathLike | bytes | bytearray | memoryview, *, threads: int | Context | None = None,
             budget_bytes: int = 0, device: Any = "cpu", q_heads: int = 0) -> tuple["Cache", list[Sequence]]:
        """The cache of a file, or of the bytes of one, and its sequences in the order in which they were saved. Any device reads what any
        other wrote; a GPU must know q_heads, where the file does not say it."""
        if str(device) != "cpu":
            from .cuda import CudaCache
            return CudaCache.load(file, device=device, threads=threads, budget_bytes=budget_bytes, q_heads=q_heads)
        ctx = context(threads)
        options, kept = _snapshot(None, budget_bytes=budget_bytes)
        if isinstance(file, BYTES):
            source, held = _source(file)
            create, where = lib.aura_cache_read, ctypes.byref(source)
        else:
            create, where = lib.aura_cache_load, os.fsencode(file)
        handle = Handle(create, ctx._handle.use(), where, ctypes.byref(options), destroy=lib.aura_cache_destroy, parent=ctx._handle)
        cache = cls._of(ctx, handle)
        return cache, [Sequence(cache, id) for id in cache.sequences()]

    def load_sequence(self, file: str | os.PathLike | bytes | bytearray | memoryview) -> Sequence:
        """A new sequence from a file that Sequence.save() wrote, or from its to_bytes()."""
        id, options = ctypes.c_uint32(), make(_abi.aura_snapshot_options)
        if isinstance(file, BYTES):
            source, held = _source(file)
            check(lib.aura_seq_read(self._use(), ctypes.byref(source), ctypes.byref(options), ctypes.byref(id)))
        else:
            check(lib.aura_seq_load(self._use(), os.fsencode(file), ctypes.byref(options), ctypes.byref(id)))
        return Sequence(self, id.value)


def _mask(job: Any, mask: Array, queries: int, heads: int) -> np.ndarray:
    """A mask for all heads, or one for each."""
    if is_torch(mask):
        mask = (mask if mask.dtype.is_floating_point else mask.bool()).detach().cpu()
        mask = mask.float().numpy() if mask.dtype.is_floating_point else mask.numpy()
    mask = np.asarray(mask)
    if mask.dtype == bool:
        mask = np.where(mask, np.float32(0), np.float32(-np.inf))
    if mask.ndim not in (2, 3) or mask.shape[-2] != queries or mask.ndim == 3 and mask.shape[0] != heads:
        raise bad(f"mask has shape {list(mask.shape)}: [{queries}, keys] or [{heads}, {queries}, keys] was expected")
    mask = np.ascontiguousarray(mask, np.float32)
    job.mask, job.mask_keys = mask.ctypes.data, mask.shape[-1]
    job.mask_head_stride = mask.shape[1] * mask.shape[2] if mask.ndim == 3 else 0
    return mask
