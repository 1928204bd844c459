"""The caches of all layers of a model, in one budget."""
from __future__ import annotations

import ctypes
import os
from typing import Any, Iterator, Sequence as Many

from . import _abi
from ._cache import Cache, Sequence, _snapshot, config_of
from ._lib import Context, Handle, Owner, bad, check, context, lib, make
from ._profiles import Profile


class _Layer(Cache):
    """The cache of a layer, which its model owns."""

    def __init__(self, model: "ModelCache", layer: int):
        self._model, self._context, self._handle = model, model._context, model._handle
        self._pointer = lib.aura_model_cache_layer(model._handle.use(), layer)
        self._read_config()

    def __del__(self):
        pass

    def _use(self) -> int:
        self._handle.use()
        return self._pointer

    def _is(self, other: Cache) -> bool:
        """A model makes a layer's object anew for whoever asks."""
        return isinstance(other, _Layer) and other._pointer == self._pointer

    def sequence(self) -> Sequence:
        raise bad("a layer of a model: ModelCache.sequence() makes a sequence in all layers")

    def _fork(self, seq: Sequence, tokens: int) -> Sequence:
        raise bad("a layer of a model: ModelSequence.fork() forks in all layers")


class ModelSequence:
    """A sequence in all layers of a model: seq[i] is the Sequence of layer i, for append() and attend()."""

    def __init__(self, model: "ModelCache", id: int):
        self.model, self.id = model, id

    def __del__(self):
        model = getattr(self, "model", None)
        if model is not None and model._handle.usable():
            lib.aura_model_seq_release(model._handle.pointer, self.id)

    def __reduce__(self):
        raise bad("a ModelSequence cannot be pickled: save() it to a file")

    def __copy__(self):
        return self.fork()

    def __deepcopy__(self, memo: dict):
        return self.fork()

    def __getitem__(self, layer: int) -> Sequence:
        return Sequence(self.model.layers[layer], self.id, owner=self)

    def __iter__(self) -> Iterator[Sequence]:
        return (self[i] for i in range(len(self.model.layers)))

    def __len__(self) -> int:
        """Tokens in layer 0."""
        return len(self[0])

    def fork(self, tokens: int | None = None) -> "ModelSequence":
        """As Sequence.fork(), in all layers."""
        id = ctypes.c_uint32()
        tokens = len(self) if tokens is None else tokens
        check(lib.aura_model_seq_fork(self.model._handle.use(), self.id, tokens, ctypes.byref(id)))
        return ModelSequence(self.model, id.value)

    def truncate(self, tokens: int) -> None:
        """As Sequence.truncate(), in all layers or in none."""
        check(lib.aura_model_seq_truncate(self.model._handle.use(), self.id, tokens))

    def remove(self, first: int, tokens: int) -> None:
        """As Sequence.remove(), in all layers or in none."""
        check(lib.aura_model_seq_remove(self.model._handle.use(), self.id, first, tokens))

    def save(self, path: str | os.PathLike) -> None:
        """Saves the sequence of all layers to one file."""
        check(lib.aura_model_seq_save(self.model._handle.use(), self.id, os.fsencode(path), None))


class ModelCache(Owner):
    """The caches of all layers of a model, in one budget; a sequence is in all of them.

    layers: a list of dicts, one for each layer, with the arguments of Cache: [dict(q_heads=32, kv_heads=8, dim=128, format="k4v4"), ...].
    profile: an `aura.Profile` with balances, metrics and formats of layers whose dicts have none.
    """

    def __init__(self, layers: Many[dict], *, profile: Profile | None = None, budget_bytes: int = 0,
                 threads: int | Context | None = None):
        made = [config_of(**layer) for layer in layers]
        configs = (_abi.aura_config * max(1, len(made)))(*[config for config, _ in made])
        config = make(_abi.aura_model_config, layers=len(made), configs=ctypes.addressof(configs), budget_bytes=budget_bytes,
                      profile=profile._handle.use() if profile else None)
        self._context = context(threads)
        parent = self._context._handle
        self._handle = Handle(lib.aura_model_cache_create, parent.use(), ctypes.byref(config), destroy=lib.aura_model_cache_destroy,
                              parent=parent)

    @property
    def layers(self) -> list[Cache]:
        """The caches of the layers."""
        info = self._get_info()
        return [_Layer(self, i) for i in range(info.layers)]

    def _get_info(self) -> Any:
        info = make(_abi.aura_model_cache_info)
        check(lib.aura_model_cache_get_info(self._handle.use(), ctypes.byref(info)))
        return info

    @property
    def bytes(self) -> int:
        """What all layers have allocated."""
        return self._get_info().bytes

    def sequence(self) -> ModelSequence:
        """A new sequence without tokens."""
        id = ctypes.c_uint32()
        check(lib.aura_model_seq_create(self._handle.use(), ctypes.byref(id)))
        return ModelSequence(self, id.value)

    def sequences(self) -> list[int]:
        """The ids of the sequences that there are."""
        n = ctypes.c_size_t(0)
        check(lib.aura_model_cache_list(self._handle.use(), None, ctypes.byref(n)))
        ids = (ctypes.c_uint32 * max(1, n.value))()
        check(lib.aura_model_cache_list(self._handle.use(), ids, ctypes.byref(n)))
        return list(ids[: n.value])

    def save(self, path: str | os.PathLike, note: bytes = b"") -> None:
        """Saves all layers to one file."""
        options, kept = _snapshot(None, note)
        check(lib.aura_model_save(self._handle.use(), os.fsencode(path), ctypes.byref(options)))

    @classmethod
    def load(cls, path: str | os.PathLike, *, threads: int | Context | None = None) -> tuple["ModelCache", list[ModelSequence]]:
        """The caches of a file, and their sequences in the order in which they were saved."""
        ctx, options = context(threads), make(_abi.aura_snapshot_options)
        model = cls.__new__(cls)
        model._context = ctx
        model._handle = Handle(lib.aura_model_load, ctx._handle.use(), os.fsencode(path), ctypes.byref(options),
                               destroy=lib.aura_model_cache_destroy, parent=ctx._handle)
        return model, [ModelSequence(model, id) for id in model.sequences()]

    def load_sequence(self, path: str | os.PathLike) -> ModelSequence:
        """A new sequence from a file that ModelSequence.save() wrote."""
        id = ctypes.c_uint32()
        check(lib.aura_model_seq_load(self._handle.use(), os.fsencode(path), None, ctypes.byref(id)))
        return ModelSequence(self, id.value)
