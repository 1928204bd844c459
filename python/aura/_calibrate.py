"""Attention in torch, over numbers; and a profile of a model, from what it computes while it reads a text."""
from __future__ import annotations

import ctypes
import math
from typing import Any, Iterable

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.pytorch_utils import Conv1D

from . import _abi
from ._cache import triangle
from ._lazy import LazyMask, shown
from ._lib import Error, Handle, Status, bad, check, context, lib, make
from ._profiles import Profile
from ._step import rowwise, set_strides

_OUT = ("o_proj", "out_proj", "c_proj", "dense")  # what families call the product behind attention
_LEAST = 64  # tokens of a text


def attend_plainly(module: Any, query: torch.Tensor, key: Any, value: Any, mask: Any, scaling: float | None,
                   softcap: float | None, sinks: torch.Tensor | None, kwargs: dict) -> tuple:
    """Attention in torch, over numbers, with whatever was asked for."""
    key, value = shown(key), shown(value)
    weights_wanted = kwargs.pop("output_attentions", False)
    if softcap is None and sinks is None and not weights_wanted:
        mask = mask.sdpa if isinstance(mask, LazyMask) else mask
        return sdpa_attention_forward(module, query, key, value, mask, scaling=scaling, **kwargs)
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


class _Layer:
    """What a layer's queries, keys and values say, and which errors of values its next product makes large."""

    def __init__(self, module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor):
        self.heads, self.k_dim, self.v_dim = key.shape[1], key.shape[3], value.shape[3]
        config = make(_abi.aura_calibration_config, q_heads=query.shape[1], kv_heads=self.heads, k_dim=self.k_dim,
                      v_dim=self.v_dim)
        parent = context(None)._handle
        self.handle = Handle(lib.aura_calibration_create, parent.use(), ctypes.byref(config),
                             destroy=lib.aura_calibration_destroy, parent=parent)
        self.v_metric = _metric_of_values(module, query.shape[1], self.heads, self.v_dim)

    def look(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        for call, x in ((lib.aura_calibration_keys, key), (lib.aura_calibration_queries, query),
                        (lib.aura_calibration_values, value)):
            x, view = rowwise(x.detach().cpu()), _abi.aura_input()
            for row in x:
                set_strides(view, row, 1, 0)
                view.data = row.data_ptr()
                check(call(self.handle.use(), x.shape[2], ctypes.byref(view)))

    def put(self, profile: Profile, index: int) -> None:
        k_metric, balance = torch.empty(self.heads, triangle(self.k_dim)), torch.empty(self.heads, self.k_dim)
        check(lib.aura_calibration_metric(self.handle.use(), k_metric.data_ptr()))
        check(lib.aura_calibration_k_balance(self.handle.use(), balance.data_ptr()))
        found = dict(balance=balance, k_metric=k_metric)
        if self.v_metric is not None:
            v_balance = torch.empty(self.heads, self.v_dim)
            check(lib.aura_calibration_v_balance(self.handle.use(), self.v_metric.data_ptr(), v_balance.data_ptr()))
            found.update(v_balance=v_balance, v_metric=self.v_metric)
        profile.put(index, **found)


def _metric_of_values(module: Any, q_heads: int, kv_heads: int, dim: int) -> torch.Tensor | None:
    """The sum of W'W over the query heads of each KV head, where W is what the next product does to a head's output; None
    where that is not a matrix to be found."""
    for name in _OUT:
        weight = getattr(getattr(module, name, None), "weight", None)
        if weight is None or weight.dim() != 2 or not weight.is_floating_point():
            continue
        if isinstance(getattr(module, name), Conv1D):  # of GPT-2: the other way round
            weight = weight.T
        if weight.shape[1] == q_heads * dim:
            w = weight.detach().cpu().double().T.reshape(kv_heads, -1, dim, weight.shape[0])
            below = torch.tril_indices(dim, dim)
            return torch.einsum("kgdo,kgeo->kde", w, w).float()[:, below[0], below[1]].contiguous()
    return None


class _Reading:
    """The layers of a model that is reading, by their numbers. One model reads at a time."""

    now: "_Reading | None" = None

    def __init__(self) -> None:
        self.layers: dict[int, _Layer] = {}


def _watched(module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any,
             scaling: float | None = None, softcap: float | None = None, s_aux: torch.Tensor | None = None, **kwargs: Any) -> tuple:
    """The attention function of a model that calibrate() lets read."""
    layers, index = _Reading.now.layers, getattr(module, "layer_idx", None)
    if index is not None and key.shape[2] == query.shape[2]:
        if index not in layers:
            layers[index] = _Layer(module, query, key, value)
        layers[index].look(query, key, value)
    return attend_plainly(module, query, key, value, attention_mask, scaling, softcap, s_aux, kwargs)


@torch.no_grad()
def calibrate(model: Any, texts: Iterable[torch.Tensor]) -> Profile:
    """A profile for AuraCache(profile=...) of this model, which reads the texts for that, as `aura calibrate` does with a GGUF:
    which errors of keys and values matter, layer by layer. 1 024 tokens of any text are enough for most of it (doc/quality.md).

    texts: tensors of token ids, [tokens], 64 at least, each from its beginning. Layers of which nothing can be seen (attention
    that transformers does not take from its list of functions) have nothing in the profile."""
    config = model.config.get_text_config(decoder=True) if hasattr(model.config, "get_text_config") else model.config
    before, reading = config._attn_implementation, _Reading()
    if _Reading.now is not None:
        raise bad("another model is reading")
    _Reading.now = reading
    try:
        model.set_attn_implementation("aura_watched")
        for ids in texts:
            if ids.dim() != 1 or len(ids) < _LEAST:
                raise bad(f"a text has shape {list(ids.shape)}: [tokens], {_LEAST} at least")
            model(input_ids=ids[None].to(model.device), use_cache=False)
            for layer in reading.layers.values():
                check(lib.aura_calibration_next_text(layer.handle.use()))
    finally:
        model.set_attn_implementation(before)
        _Reading.now = None
    if not reading.layers:
        raise Error(Status.UNSUPPORTED, "no layer of this model was seen: there was no text, or it computes attention itself")
    profile = Profile(config.num_hidden_layers)
    for index, layer in reading.layers.items():
        layer.put(profile, index)
    return profile


AttentionInterface.register("aura_watched", _watched)
AttentionMaskInterface.register("aura_watched", lambda **asked: LazyMask(asked))
