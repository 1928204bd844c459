"""A cache for transformers' generate(), held in 2 to 8 bits per number, and attention straight from it.

    from aura.transformers import AuraCache
    model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="aura")
    model.generate(**inputs, past_key_values=AuraCache(model.config, "k4v4"))

How it works: transformers hands keys and values to the cache, and what the cache returns to an attention function. AuraCache returns
tensors that only say where they come from (`Lazy`). The attention function "aura", which this module registers together with a mask of
that name, finds the cache in them and asks it; so does torch's scaled_dot_product_attention (attn_implementation="sdpa"). Anybody else
who looks at such a tensor gets its numbers, decoded, and a log message says so once.

A prompt attends to its own keys and values as they are, and is encoded after that (prefill="codes": before). So does a later part of
one, of more than 16 tokens, with "aura" on the CPU: it sees older tokens as they are stored. Padding on the left is not stored, but
with "sdpa". There are no gradients.
"""
from __future__ import annotations

import functools
import io
import json
import os
import zipfile
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from ._cache import BYTES, Cache as Store
from ._calibrate import attend_plainly, calibrate
from ._layer import AuraLayer, Settings
from ._lazy import Lazy, LazyMask, say_once, counts
from ._lib import Error, Status, bad
from ._profiles import Profile

__all__ = ["AuraCache", "calibrate"]


class AuraCache(Cache):
    """A cache for generate(past_key_values=...) of any decoder model of transformers, on the CPU or a GPU.

    config: the model's; it says which layers have a window, whose memory is then given back. None: no layer has.
    format: of `aura.formats()`, for all layers; None: what the profile says of each, and k4v4 where it says nothing.
    threads: that attention uses; None: as many as torch.
    prefill: "exact": a prompt, or a part of one, attends to its own numbers as they are; "codes": to what is stored.
    rollback: tokens that crop() takes back without loss, 1 to 224; 0: 16.
    profile: an `aura.Profile`, or the path of one: of `aura calibrate`, or what calibrate() found out.
    learn: each layer finds out which directions its queries look at, from the first tokens of a prompt, and encodes keys, the
    prompt's too, so that errors there are small. What is stored then depends on what was asked. Not on a GPU.
    device: None: where the keys are. max_tokens: of a row, that a GPU's memory is taken for at once; it takes more when more come.
    offloading: of a model on a GPU: layers wait in the memory of the host until it is their turn.
    """

    def __init__(self, config: Any = None, format: str | None = None, *, threads: int | None = None, prefill: str = "exact", rollback: int = 0,
                 planes: int = 0, profile: Profile | str | os.PathLike | None = None, learn: bool = True, device: Any = None,
                 max_tokens: int = 0, offloading: bool = False, offload_only_non_sliding: bool = True):
        if prefill not in ("exact", "codes"):
            raise bad(f'prefill is {prefill!r}: "exact" and "codes" are there')
        if profile is not None and not isinstance(profile, Profile):
            profile = Profile.load(profile)
        device = None if device is None or str(device) == "cpu" else str(device)
        self.settings = Settings(format, threads or torch.get_num_threads(), prefill, rollback, planes, profile, learn, device, max_tokens,
                                  _ratio_of(config))
        Store(1, 1, 64, format or "k4v4", threads=1)  # a format that is none says so here
        layers = [] if config is None else list(map(self._layer, *zip(*enumerate(_plain_layers(config)))))
        if layers:
            super().__init__(layers=layers, offloading=offloading, offload_only_non_sliding=offload_only_non_sliding)
            if not any(isinstance(layer, AuraLayer) for layer in layers):
                say_once(f"no layer of this model can be held: they are {', '.join(sorted({type(x).__name__ for x in layers}))}")
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
    def load(cls, path: str | os.PathLike | bytes | bytearray | memoryview, config: Any = None, **options: Any) -> "AuraCache":
        """The cache of a file, or of the bytes of one; `config` and options as when it was made, less the format, which the
        file knows."""
        if "format" in options:
            raise bad("a file says which format it has: load() takes none")
        data, path = (io.BytesIO(path), "these bytes") if isinstance(path, BYTES) else (path, path)
        try:
            with zipfile.ZipFile(data) as file:
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

def attention(module: Any, query: torch.Tensor, key: Any, value: Any, attention_mask: Any, scaling: float | None = None,
              dropout: float = 0.0, sliding_window: int | None = None, softcap: float | None = None, s_aux: torch.Tensor | None = None,
              **kwargs: Any) -> tuple:
    """The attention function "aura" of transformers: query [batch, q_heads, tokens, dim] -> [batch, tokens, q_heads, v_dim]."""
    lazy = type(key) is Lazy and type(value) is Lazy and not key.repeat
    if not lazy or key.end != key.layer.length or dropout or kwargs.get("position_bias") is not None or kwargs.get("output_attentions"):
        kwargs["dropout"] = dropout
        return attend_plainly(module, query, key, value, attention_mask, scaling, softcap, s_aux, kwargs)
    layer, mask, tokens = key.layer, attention_mask, query.shape[2]
    made = type(mask) is LazyMask
    if made:
        fits = mask.asked["kv_length"] == key.length
    else:
        fits = mask is None or layer.takes_mask(mask.shape, query.shape[1]) and mask.shape[3] == key.length
    if not fits or query.shape[1] % layer.kv_heads:
        return attend_plainly(module, query, key, value, mask, scaling, softcap, s_aux, kwargs)
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
        if tokens > 1 and skip is None and layer.sees_itself(tokens):
            return layer.attend_part(query, scaling, softcap, s_aux, window), None
        return layer.attend(query, scaling, softcap, s_aux, skip, window=window), None
    if mask is None:
        mask = torch.ones((1, 1, tokens, key.length), dtype=torch.bool, device=query.device)
    return layer.attend(query, scaling, softcap, s_aux, mask=mask.real() if made else mask, length=key.length), None


def _exact(module: Any, layer: AuraLayer, query: torch.Tensor, mask: Any, scaling: float | None, softcap: float | None,
           sinks: torch.Tensor | None, skip: list[int] | None, window: int, plain: bool, kwargs: dict) -> torch.Tensor | None:
    """A prompt over its own numbers; None: what is asked for is neither in torch nor without a mask."""
    if softcap is None and sinks is None:
        counts["exact"] += 1
        k, v = layer.pending
        mask = mask.sdpa if isinstance(mask, LazyMask) else mask
        out = sdpa_attention_forward(module, query, k, v, mask, scaling=scaling, **kwargs)[0]
        layer.teach(query, skip, None if skip else mask)
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
