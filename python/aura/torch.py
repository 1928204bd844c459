"""Operators of torch, so that torch.compile keeps its graph around attention to a cache.

    batch = aura.torch.Batch(cache, seqs)
    torch.ops.aura.append(batch.state, k, v)            # [batch, tokens, kv_heads, dim] each
    out = torch.ops.aura.attend(batch.state, q, v_dim)  # [batch, tokens, q_heads, dim] -> [batch, tokens, q_heads, v_dim]

The state is a small tensor of the CPU that both change, as torch is told: so it leaves them in their order. The other tensors
are where the cache is: on the CPU or a GPU. There are no gradients.
"""
import itertools
import weakref
from typing import Optional

import torch

from ._cache import Cache, Sequence
from ._lib import bad

__all__ = ["Batch"]

_batches: "weakref.WeakValueDictionary[int, Batch]" = weakref.WeakValueDictionary()
_numbers = itertools.count(1)  # a number that is never used again: a state of a batch that is gone must not find another


class Batch:
    """Sequences of a cache, for operators: `state` stands for them, as long as this object is held."""

    def __init__(self, cache: Cache, seqs: list[Sequence]):
        self.cache, self.seqs = cache, list(seqs)
        number = next(_numbers)
        self.state = torch.tensor([number, 0], dtype=torch.int64)
        _batches[number] = self


def _batch(state: torch.Tensor) -> Batch:
    batch = _batches.get(int(state[0]))
    if batch is None:
        raise bad("the state of a Batch that is gone")
    return batch


@torch.library.custom_op("aura::append", mutates_args=("state",), device_types=("cpu", "cuda"))
def append(state: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    batch = _batch(state)
    batch.cache.append(batch.seqs, k.detach(), v.detach())
    state[1] += k.shape[1]


# Read alone, the state would let inductor move this before an append() or behind one.
@torch.library.custom_op("aura::attend", mutates_args=("state",), device_types=("cpu", "cuda"))
def attend(state: torch.Tensor, q: torch.Tensor, v_dim: int, scale: float = 0.0, softcap: float = 0.0, window: int = 0,
           sinks: Optional[torch.Tensor] = None, alibi: Optional[torch.Tensor] = None) -> torch.Tensor:
    batch = _batch(state)
    if v_dim != batch.cache.v_dim:
        raise bad(f"v_dim is {v_dim}: the values of this cache have {batch.cache.v_dim}")
    out = q.new_empty((*q.shape[:3], v_dim))
    batch.cache.attend(batch.seqs, q.detach(), out, scale=scale, softcap=softcap, window=window, sinks=sinks, alibi=alibi)
    return out


@attend.register_fake
def _(state: torch.Tensor, q: torch.Tensor, v_dim: int, scale: float = 0.0, softcap: float = 0.0, window: int = 0,
      sinks: Optional[torch.Tensor] = None, alibi: Optional[torch.Tensor] = None) -> torch.Tensor:
    return q.new_empty((*q.shape[:3], v_dim))
