"""A layer of an AuraCache."""
from __future__ import annotations

import ctypes
import dataclasses
import itertools
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import CacheLayerMixin

from . import _abi
from ._cache import Cache as Store, Flags, Sequence, format_of, triangle
from ._lazy import Lazy, counts, padding_of
from ._lib import Error, Status, bad, check, emulated, lib, make
from ._profiles import Profile
from ._step import DTYPES, GpuStep, Step, added, looks_of, rowwise, set_strides

_FEW = 16  # most tokens of a step; a call of more is a prompt, or a part of one
_WINDOW_QUERIES = 512  # most tokens of a call where a window frees memory; longer prompts go in parts
_PLAIN = (_abi.AURA_KIND_F32, _abi.AURA_KIND_F16, _abi.AURA_KIND_BF16)
_TAUGHT = 512  # positions whose queries a cache learns from
_LEAST_TAUGHT = 128  # fewer queries are asked once: again and again they would make worse what comes long after them


@dataclasses.dataclass(frozen=True)
class Settings:
    format: str | None
    threads: int
    prefill: str
    rollback: int
    planes: int
    profile: Profile | None
    learn: bool
    device: str | None = None
    max_tokens: int = 0
    ratio: int = 1  # query heads to a KV head, as far as the configuration says it

    def __deepcopy__(self, memo: dict) -> "Settings":
        return self

    def store_of(self, index: int | None, v_dim: int, kv_heads: int, dim: int) -> dict:
        """What the profile has for a layer, and the format: the one that was asked for, else the profile's, else k4v4. Plain sides take
        neither balances nor metrics."""
        found = {} if self.profile is None or index is None or index >= len(self.profile) else self.profile.options(index)
        format = self.format or found.get("format", "k4v4")
        kinds = format_of(format)
        for name, side, width in (("balance", kinds.k, dim), ("k_metric", kinds.k, triangle(dim)), ("v_balance", kinds.v, v_dim),
                                  ("v_metric", kinds.v, triangle(v_dim))):
            if name in found and (side in _PLAIN or found[name].shape != (kv_heads, width)):
                del found[name]
        return {**found, "format": format}


class AuraLayer(CacheLayerMixin):
    """A layer of an AuraCache: a sequence of an aura.Cache for each row of the batch."""

    is_compileable = False
    is_croppable = True
    is_sliding = False
    supports_early_init = False

    def __init__(self, settings: Settings, window: int = 0, index: int | None = None):
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
        self._step: Step | None = None
        self.taught = False

    def __repr__(self) -> str:
        return f"AuraLayer({self.store.format if self.store else self.settings.format}, {self.length} tokens)"

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

    def takes_mask(self, shape: tuple, heads: int) -> bool:
        """Whether attention can have a mask of this shape."""
        return len(shape) == 4 and (shape[1] == 1 or shape[1] == heads and not self.gpu)

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
            options = dict(device=self.gpu, tokens=self.rows * (-(-each // 256) * 256), seqs=self.rows,
                           seq_tokens=0 if window else max(1 << 18, 2 * each))
        options.update(settings.store_of(self.index, self.v_dim, self.kv_heads, self.k_dim))
        self.store = Store(q_heads, self.kv_heads, self.k_dim, v_dim=self.v_dim, window=window,
                           max_queries=_WINDOW_QUERIES if window else 0, rollback=settings.rollback,
                           flags=Flags.LEARN if settings.learn and not self.gpu else 0, threads=settings.threads, **options)
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

    def teach(self, query: torch.Tensor, skip: list[int] | None, mask: torch.Tensor | None = None) -> None:
        """A prompt is stored. A cache that learns is asked before, while there is nothing to see, so that it has seen queries when it
        encodes. The answers do not count. mask: what says which tokens are padding where these are stored."""
        if not self.taught and self.settings.learn and not self.gpu and self.pending[0].shape[2] == query.shape[2]:
            self.taught = True
            config = self.store._get_info().config
            starts = skip or padding_of(mask, len(self.seqs), query.shape[2])
            if config.flags & Flags.LEARN and config.format.k not in _PLAIN and not config.k_metric and self._finite(starts):
                try:
                    self._ask_nothing(query, starts)
                except Error:
                    self.pending = None
                    self._recount()
                    raise
        self.flush(skip)

    def _finite(self, starts: list[int]) -> bool:
        """Whether the prompt is one that can be stored: of another nothing is learnt."""
        return all(bool(x[i, :, first:].isfinite().all()) for x in self.pending for i, first in enumerate(starts))

    def _ask_nothing(self, query: torch.Tensor, starts: list[int]) -> None:
        """The first queries behind the padding of each row. Those of a short prompt are asked again until they are enough, since
        a cache that has counted fewer has learnt nothing."""
        parts = [rowwise(query[i : i + 1, :, first : first + _TAUGHT])[0] for i, first in enumerate(starts)]
        parts = [(seq, part) for seq, part in zip(self.seqs, parts) if part.shape[1]]
        left, heads = sum(part.shape[1] for _, part in parts), query.shape[1]
        left = _TAUGHT if left >= _LEAST_TAUGHT else left
        nothing = (ctypes.c_uint64 * _TAUGHT)()
        for seq, part in itertools.cycle(parts):
            count = part.shape[1]
            out = torch.empty((count, heads, self.v_dim), dtype=part.dtype)
            ask = make(_abi.aura_attend_job, seq=seq.id, queries=count, q_heads=heads, until=ctypes.addressof(nothing))
            set_strides(ask.q, part, 1, 0)
            set_strides(ask.out, out, 0, 1)
            ask.q.data, ask.out.data = part.data_ptr(), out.data_ptr()
            check(lib.aura_attend(self.store._use(), ctypes.byref(ask), 1, None))
            left -= count
            if left <= 0:
                break

    def flush(self, skip: list[int] | None = None) -> None:
        """Stores what the last update() was given, less the first skip[i] tokens of row i, which are padding."""
        if self.pending is None:
            return
        self._open(self.settings.ratio * self.kv_heads, self.pending[0].shape[2])
        (k, v), self.pending = self.pending, None
        k, v = rowwise(k), rowwise(v)
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
                set_strides(view, row, 1, 0)
                view.data = row.data_ptr()
            n += 1
        check(lib.aura_append(self.store._use(), jobs, n))
        if skip:
            self.pads = [old + min(new, tokens) for old, new in zip(self.pads, skip)]

    def attend(self, query: torch.Tensor, scale: float | None = None, softcap: float = 0, sinks: torch.Tensor | None = None,
               skip: list[int] | None = None, mask: torch.Tensor | None = None, length: int = 0, window: int = 0) -> torch.Tensor:
        """query [batch, q_heads, tokens, dim] -> [batch, tokens, q_heads, v_dim], over all tokens, those of the last update() included.

        mask: [batch or 1, 1 or heads, tokens or 1, length or 1] for the last `length` positions; None: causal. On a GPU all heads
        have the same."""
        counts["attend"] += 1
        if mask is not None:
            mask = mask.expand(-1, -1, query.shape[2], length)
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
        if step is not None and mask is None and skip is None and k is not None and step.known == looks_of(k, v, query):
            out = torch.empty(step.size, dtype=query.dtype, device=self.device)  # all as in the last step: the way of every token that is generated
            step.run(self.store._use(), k, v, query, out, given)
            return out
        looks = None if k is None else looks_of(k, v, query)
        dtype, tokens, rows = query.dtype, query.shape[2], rowwise(query)
        same = rows is query
        if k is not None:
            row_k, row_v = rowwise(k), rowwise(v)
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
            self._step = GpuStep(self.store, self.seqs, self.settings.planes) if self.gpu else Step(self.seqs, self.settings.planes)
        step = self._step
        step.known = None
        step.reshape(k, v, query, out)
        pads = [old + new for old, new in zip(self.pads, skip)] if skip and k is not None else self.pads
        try:
            if self.gpu:
                step.run(self.store._use(), k, v, query, out, given, skip)
            else:
                starts = (ctypes.c_uint32 * len(skip))(*skip) if skip else None
                step.args.starts = ctypes.addressof(starts) if skip else None
                step.run(self.store._use(), k, v, query, out, given)
        except Error as error:
            if error.status == Status.NOT_FINITE:  # of the answers: the tokens are stored
                self.pads = pads
            raise
        finally:
            if not self.gpu:
                step.args.starts = None
        self.pads = pads

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
            self._ask_masked_gpu(query, out, given, mask[:, 0, :, : length - (self.length - end)], end, length)
            return
        asks, options, keep = (_abi.aura_attend_job * len(self.seqs))(), make(_abi.aura_attend_options, planes=self.settings.planes), []
        options.scale, options.softcap, options.window, options.sinks = given
        for i, (ask, seq) in enumerate(zip(asks, self.seqs)):
            row_q, row_out = query[i], out[i]
            ask.size, ask.seq, ask.queries, ask.q_heads = ctypes.sizeof(ask), seq.id, query.shape[2], query.shape[1]
            set_strides(ask.q, row_q, 1, 0)
            set_strides(ask.out, row_out, 0, 1)
            ask.q.data, ask.out.data = row_q.data_ptr(), row_out.data_ptr()
            keep.append(self._hide(ask, seq, mask[i if mask.shape[0] > 1 else 0], end - self.pads[i], end, length))
        check(lib.aura_attend(self.store._use(), asks, len(asks), ctypes.byref(options)))

    def _ask_masked_gpu(self, query: torch.Tensor, out: torch.Tensor, given: tuple, mask: torch.Tensor, end: int, length: int) -> None:
        """As _ask_masked(): what a window has let go, no mask is about, so that queries see what the mask knows whatever the window."""
        counts["masked"] += 1
        known = self.length - length  # the first position that the mask knows
        since = [[max(0, known - pad)] for pad in self.pads] if self.sliding_window else None
        until = [[end - pad] for pad in self.pads] if self.sliding_window else None
        scale, softcap, window, _ = given
        self.store.attend(self.seqs, query.transpose(1, 2), out, scale=scale, softcap=softcap, window=window, sinks=self._sinks,
                          causal=False, mask=added(mask).expand(len(self.seqs), -1, -1), planes=self.settings.planes, since=since,
                          until=until)

    def _hide(self, ask: Any, seq: Sequence, mask: torch.Tensor, stored: int, end: int, length: int) -> Any:
        """A row's mask [1 or heads, queries, length]: what it says of the tokens that are stored. Every query sees those, less
        what the mask hides."""
        counts["masked"] += 1
        first = max(0, self.length - length - (end - stored))  # of the stored tokens, the first that the mask knows
        if self.sliding_window:
            first = max(first, seq.first)
        mask = mask[..., length - (self.length - end) - (stored - first) : length - (self.length - end)]
        mask = added(mask).contiguous()
        since, until = torch.full((ask.queries,), first), torch.full((ask.queries,), stored)
        ask.mask, ask.mask_keys = mask.data_ptr(), mask.shape[2]
        ask.mask_head_stride = mask.shape[1] * mask.shape[2] if len(mask) > 1 else 0
        setattr(ask, "from", since.data_ptr())
        ask.until = until.data_ptr()
        return mask, since, until

    def sees_itself(self, tokens: int) -> bool:
        """Whether this is a later part of a prompt that sees its own numbers as they are: more tokens than a step has, of a
        cache of the CPU with codes on some side."""
        exact = self.settings.prefill == "exact" and not self.gpu
        if tokens <= _FEW or not exact or self.pending is None or self.pending[0].shape[2] != tokens:
            return False
        kinds = self.store._get_info().config.format
        return kinds.k not in _PLAIN or kinds.v not in _PLAIN

    def attend_part(self, query: torch.Tensor, scale: float | None, softcap: float, sinks: torch.Tensor | None,
                    window: int) -> torch.Tensor:
        """As attend(), for a later part of a prompt without padding: its own tokens are seen as they are, older ones as they
        are stored. Both answers are joined by their log-sum-exp. The part is stored last, when a cache that learns has counted
        its queries; its own tokens come first, so that one with numbers that are none teaches nothing."""
        counts["attend"] += 1
        window = window or self.sliding_window
        k, v, q = (rowwise(x).transpose(1, 2) for x in (*self.pending, query))
        given = dict(scale=scale or self.k_dim**-0.5, softcap=softcap or 0.0, return_lse=True)
        out = torch.empty(*q.shape[:3], self.v_dim)
        own = Store(q.shape[2], self.kv_heads, self.k_dim, "kf32vf32", v_dim=self.v_dim, threads=self.settings.threads)
        seqs = [own.sequence() for _ in self.seqs]
        try:
            own.append(seqs, k, v)
            own_lse = own.attend(seqs, q, out, window=window, **given)[1]
            older, older_lse = self._attend_older(q, sinks, window, given)
        except Error:
            self.pending = None
            self._recount()
            raise
        self.flush()
        share = torch.sigmoid(older_lse - torch.from_numpy(np.stack(own_lse)))
        return out.lerp_(older, share[..., None]).to(query.dtype)

    def _attend_older(self, q: torch.Tensor, sinks: torch.Tensor | None, window: int,
                      given: dict) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries that come behind all that is stored. What a query sees begins at since, `window` tokens before its end."""
        out, lse, tokens = torch.empty(*q.shape[:3], self.v_dim), torch.empty(q.shape[:3]), q.shape[1]
        stored = [(len(seq), seq.first if window else 0) for seq in self.seqs]
        most = _WINDOW_QUERIES if self.sliding_window else tokens
        for begin in range(0, tokens, most):
            part = slice(begin, min(begin + most, tokens))
            ends = np.arange(part.start + 1, part.stop + 1)
            since = [np.clip(ends + (old - window), first, old) for old, first in stored] if window else None
            answers = self.store.attend(self.seqs, q[:, part], out[:, part], sinks=sinks, planes=self.settings.planes,
                                        since=since, until=[[old] for old, _ in stored], **given)[1]
            lse[:, part] = torch.from_numpy(np.stack(answers))
        return out, lse

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
        plain = self.dtype if self.dtype in DTYPES else torch.float32
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
        tokens_to_remove = int(tokens_to_remove)  # generate() may have it on a GPU
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
    def _loaded(cls, settings: Settings, about: dict, data: bytes) -> "AuraLayer":
        layer = cls(settings, about["window"], about["index"])
        if data:
            layer.gpu = settings.device
            layer.store, layer.seqs = Store.load(data, threads=settings.threads, device=layer.gpu or "cpu",
                                                 q_heads=settings.ratio * about["kv_heads"])
            layer.length, layer.pads, layer.rows, layer.is_initialized = about["length"], about["pads"], len(layer.seqs), True
            layer.kv_heads, layer.k_dim, layer.v_dim = about["kv_heads"], about["k_dim"], about["v_dim"]
            layer.dtype = getattr(torch, about["dtype"])
            layer.device = torch.device(layer.store.device if layer.gpu and not emulated else "cpu")
        return layer
