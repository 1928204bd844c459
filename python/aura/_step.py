"""Append and attend in one call, for tensors of torch: the structs of such calls, kept from token to token."""
from __future__ import annotations

import ctypes
import math
from typing import Any

import torch

from . import _abi
from ._cache import Sequence
from ._lib import Error, Status, check, lib, make

DTYPES = {torch.float32: _abi.AURA_F32, torch.float16: _abi.AURA_F16, torch.bfloat16: _abi.AURA_BF16}


class Step:
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
        set_strides(self.q, query, 2, 1)
        set_strides(self.out, out, 1, 2)
        if k is not None:
            args.k_seq_stride, args.v_seq_stride = k.stride(0), v.stride(0)
            set_strides(self.k, k, 2, 1)
            set_strides(self.v, v, 2, 1)

    def run(self, store: int, k: torch.Tensor | None, v: torch.Tensor | None, query: torch.Tensor, out: torch.Tensor, given: tuple) -> None:
        self.k.data, self.v.data = (None, None) if k is None else (k.data_ptr(), v.data_ptr())
        self.q.data, self.out.data = query.data_ptr(), out.data_ptr()
        if given != self.given:
            self.options.scale, self.options.softcap, self.options.window, self.options.sinks = self.given = given
        check(lib.aura_step(store, *self.at))


class GpuStep:
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
        set_strides(self.q, query, 2, 1)
        set_strides(self.out, out, 1, 2)
        self.q.seq_stride, self.out.seq_stride = query.stride(0), out.stride(0)
        if k is not None:
            set_strides(self.k, k, 2, 1)
            set_strides(self.v, v, 2, 1)
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


def looks_of(k: torch.Tensor, v: torch.Tensor, query: torch.Tensor) -> tuple:
    return query.shape, query.stride(), k.stride(), v.stride(), query.dtype, k.dtype, v.dtype


def set_strides(view: Any, tensor: torch.Tensor, token_axis: int, head_axis: int) -> None:
    """Strides of an aura_input or aura_view; over one row any will do, and 0 means contiguous."""
    view.dtype = DTYPES[tensor.dtype]
    view.token_stride = tensor.stride(token_axis) if tensor.shape[token_axis] > 1 else 0
    view.head_stride = tensor.stride(head_axis) if tensor.shape[head_axis] > 1 else 0


def rowwise(x: torch.Tensor) -> torch.Tensor:
    """[batch, heads, tokens, dim] as the library reads it: numbers of a head side by side."""
    if x.dtype not in DTYPES:
        x = x.float()
    if x.stride(-1) != 1 or any(n > 1 and stride == 0 for n, stride in zip(x.shape, x.stride())):
        return x.contiguous()
    return x


def added(mask: torch.Tensor) -> torch.Tensor:
    """A mask as numbers that are added to logits: 0, or -inf where it is False, or the least number of a dtype."""
    if mask.dtype == torch.bool:
        return torch.zeros(mask.shape, device=mask.device).masked_fill_(~mask, -math.inf)
    mask = mask.float()
    return mask.masked_fill(mask < -1e30, -math.inf)
