"""Tensors that say where they come from, and masks that are not made yet: what AuraCache gives to transformers instead of numbers."""
from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch
from transformers.masking_utils import causal_mask_function, sdpa_mask

if TYPE_CHECKING:
    from ._layer import AuraLayer

SDPA = torch.nn.functional.scaled_dot_product_attention
_log = logging.getLogger("aura.transformers")
_said: set[str] = set()

# How often a layer attended to codes, to a prompt's own numbers, with a mask, or had to be decoded: for tests and the curious.
counts = {"attend": 0, "exact": 0, "masked": 0, "decoded": 0}


def say_once(what: str) -> None:
    if what not in _said:
        _said.add(what)
        _log.warning("aura: %s", what)


def shown(x: Any) -> Any:
    """The numbers of what is lazy, in a list of arguments."""
    if isinstance(x, (Lazy, LazyMask)):
        return x.real()
    if isinstance(x, (list, tuple)):
        return type(x)(map(shown, x))
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
        say_once('keys and values are decoded for whoever looks at them; attn_implementation="aura" does not, where a model lets it')
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
        if function is SDPA:
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
        return function(*shown(list(arguments)), **{key: shown(value) for key, value in options.items()})

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, arguments: tuple = (), options: dict | None = None) -> Any:
        return function(*shown(list(arguments)), **{key: shown(value) for key, value in (options or {}).items()})


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
    if attn_mask is not None and not layer.takes_mask(attn_mask.shape, query.shape[1]):
        return None
    if layer.fresh and tokens > 1 and tokens == key.length and layer.settings.prefill == "exact":
        k, v = layer.pending
        counts["exact"] += 1
        groups = query.shape[1] // layer.kv_heads
        if key.repeat:
            k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        out = SDPA(query, k, v, attn_mask=attn_mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)
        layer.teach(query, None, attn_mask)
        return out
    causal = is_causal or attn_mask is None and tokens == 1
    if is_causal and tokens != key.length or not causal and attn_mask is None:
        return None
    return layer.attend(query, scale, mask=attn_mask, length=key.length).transpose(1, 2)


def padding_of(mask: torch.Tensor | None, rows: int, tokens: int) -> list[int]:
    """How many tokens at the beginning of each row of a prompt are padding, by its mask [batch or 1, 1 or heads, tokens or 1,
    tokens or 1]: they do not see themselves or, where transformers lets those that would see nothing see all, they see the
    next one."""
    if mask is None:
        return [0] * rows
    mask = (mask if mask.dtype == torch.bool else mask > -1e4)[:, 0].expand(rows, tokens, tokens)
    padding = ~mask.diagonal(dim1=1, dim2=2)
    padding[:, :-1] |= mask.diagonal(1, dim1=1, dim2=2)
    return padding.long().cumprod(1).sum(1).tolist()


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
        return function(*shown(list(arguments)), **{key: shown(value) for key, value in (options or {}).items()})

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
