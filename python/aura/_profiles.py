"""Calibration, and what formats do to numbers."""
from __future__ import annotations

import ctypes
import math
import os
from typing import Any

import numpy as np

from . import _abi
from ._arrays import empty, floats, look, shaped
from ._cache import Array, Cache, _view, format_of, name_of, triangle
from ._lib import Context, Handle, Owner, bad, check, context, lib, make


class Profile(Owner):
    """What calibration found out about the layers of a model: profile[i] is the balance of layer i, [kv_heads, dim], or None;
    options(i) is all of it."""

    def __init__(self, layers: int, *, threads: int | Context | None = None):
        self._context = context(threads)
        parent = self._context._handle
        self._handle = Handle(lib.aura_profile_create, parent.use(), layers, destroy=lib.aura_profile_destroy, parent=parent)

    def _get(self, layer: int) -> Any:
        info = make(_abi.aura_profile_layer)
        check(lib.aura_profile_get(self._handle.use(), layer, ctypes.byref(info)))
        return info

    def __len__(self) -> int:
        return self._get(0).layers

    def __getitem__(self, layer: int) -> np.ndarray | None:
        info = self._get(layer)
        if not info.balance:
            return None
        n = info.kv_heads * info.k_dim
        held = (ctypes.c_float * n).from_address(info.balance)
        return np.array(held, np.float32).reshape(info.kv_heads, info.k_dim)

    def __setitem__(self, layer: int, balance: Array | None) -> None:
        if balance is None:
            check(lib.aura_profile_set(self._handle.use(), layer, 0, 0, None))
            return
        kept = floats(balance, "balance", np.shape(balance) if len(np.shape(balance)) == 2 else (1, 1))
        check(lib.aura_profile_set(self._handle.use(), layer, *kept.shape, kept.ctypes.data))

    def options(self, layer: int) -> dict:
        """What the profile has of a layer, as arguments of Cache: format, balance, v_balance, k_metric, v_metric."""
        info, found = self._get(layer), {}
        for name, width in (("balance", info.k_dim), ("v_balance", info.v_dim), ("k_metric", triangle(info.k_dim)),
                            ("v_metric", triangle(info.v_dim))):
            if getattr(info, name):
                held = (ctypes.c_float * (info.kv_heads * width)).from_address(getattr(info, name))
                found[name] = np.array(held, np.float32).reshape(info.kv_heads, width)
        if info.format.k:
            found["format"] = name_of(info.format)
        return found

    def put(self, layer: int, *, format: str | None = None, balance: Array | None = None, v_balance: Array | None = None,
            k_metric: Array | None = None, v_metric: Array | None = None) -> None:
        """Gives a layer these, and takes what it had: as options() returns them. Arrays are [kv_heads, ...]."""
        info, kept = make(_abi.aura_profile_layer), []
        for name, x in (("balance", balance), ("v_balance", v_balance), ("k_metric", k_metric), ("v_metric", v_metric)):
            if x is None:
                continue
            side, dim = "v_dim" if name.startswith("v") else "k_dim", _dim_of(np.shape(x), name)
            kept.append(floats(x, name, np.shape(x)))
            if info.kv_heads not in (0, len(kept[-1])) or getattr(info, side) not in (0, dim):
                raise bad(f"{name} has shape {list(kept[-1].shape)}: others of the layer are of {info.kv_heads} heads of {getattr(info, side)}")
            info.kv_heads = len(kept[-1])
            setattr(info, side, dim)
            setattr(info, name, kept[-1].ctypes.data)
        if format is not None:
            info.format = format_of(format)
        check(lib.aura_profile_put(self._handle.use(), layer, ctypes.byref(info)))

    def save(self, path: str | os.PathLike) -> None:
        check(lib.aura_profile_save(self._handle.use(), os.fsencode(path)))

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Profile":
        ctx, profile = context(None), cls.__new__(cls)
        profile._context = ctx
        profile._handle = Handle(lib.aura_profile_load, ctx._handle.use(), os.fsencode(path), destroy=lib.aura_profile_destroy,
                                 parent=ctx._handle)
        return profile


def _dim_of(shape: tuple, name: str) -> int:
    """The dim that numbers of this shape are of."""
    if len(shape) == 2 and not name.endswith("metric"):
        return shape[1]
    dim = (math.isqrt(8 * shape[1] + 1) - 1) // 2 if len(shape) == 2 else 0
    if not dim or triangle(dim) != shape[1]:
        raise bad(f"{name} has shape {list(shape)}: [kv_heads, {'dim * (dim + 1) / 2' if name.endswith('metric') else 'dim'}] was expected")
    return dim


def calibrate(texts: Any, q_heads: int, kv_heads: int, dim: int) -> np.ndarray:
    """The balance of a layer, [kv_heads, dim], for Cache(balance=...).

    texts: pairs (k [tokens, kv_heads, dim], q [any, q_heads, dim]): the keys of a text from its beginning, queries of any positions.
    """
    ctx = context(None)
    config = make(_abi.aura_calibration_config, q_heads=q_heads, kv_heads=kv_heads, k_dim=dim)
    handle = Handle(lib.aura_calibration_create, ctx._handle.use(), ctypes.byref(config), destroy=lib.aura_calibration_destroy,
                    parent=ctx._handle)
    try:
        for k, q in texts:
            for x, what, heads, call in ((k, "k", kv_heads, lib.aura_calibration_keys), (q, "q", q_heads, lib.aura_calibration_queries)):
                t, view = shaped(look(x, what), what, (None, heads, dim)), _abi.aura_input()
                _view(view, t, 0)
                check(call(handle.use(), t.shape[0], ctypes.byref(view)))
            check(lib.aura_calibration_next_text(handle.use()))
        balance = np.empty((kv_heads, dim), np.float32)
        check(lib.aura_calibration_balance(handle.use(), balance.ctypes.data))
        return balance
    finally:
        handle.close()


def quantize_dequantize(k: Array, v: Array, format: str = "k4v4", **options: Any) -> tuple:
    """What a format makes of keys [tokens, kv_heads, dim] and values [tokens, kv_heads, v_dim]: both as attention would see them, new arrays
    of the same kind and dtype. Options are those of Cache. Every token is encoded, also those at the end that a cache would still
    hold in f16: the text is continued with its last token until they are. (The pinned first tokens stay plain; Flags.NO_PINNED.)"""
    key, value = shaped(look(k, "k"), "k", (None, None, None)), shaped(look(v, "v"), "v", (None, None, None))
    tokens, heads, dim = key.shape
    if value.shape[:2] != (tokens, heads):
        raise bad(f"k has shape {list(key.shape)}, v has {list(value.shape)}")
    made = [empty(x, t.dtype, t.shape)[0] for x, t in ((k, key), (v, value))]
    if not tokens:
        return tuple(made)
    cache = Cache(heads, heads, dim, format, v_dim=value.shape[2], **options)
    seq = cache.sequence()
    seq.append(k, v)
    while seq.closed < tokens and len(seq) < tokens + 128:
        seq.append(*([x[tokens - 1 :] for x in (k, v)]))
    return seq.decode(0, tokens, out=tuple(made))


def formats(dim: int = 128) -> dict[str, float]:
    """Every format, and the bits that it needs for a number of a head of `dim`, scales and references included."""
    kinds = [value for name, value in vars(_abi).items() if name.startswith("AURA_KIND_")]
    names = [name_of(_abi.aura_format(k, v)) for k in kinds for v in kinds]
    return {name: Cache(1, 1, dim, name, threads=1).bits_per_value for name in names}
