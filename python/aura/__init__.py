"""aura: a key/value cache of 2 to 8 bits per number, and attention computed straight from those bits.

    cache = aura.Cache(q_heads=32, kv_heads=8, dim=128, format="k4v4")
    seq = cache.sequence()
    seq.append(k, v)       # [tokens, kv_heads, dim] each: numpy, torch, or anything with DLPack
    out = seq.attend(q)    # [tokens, q_heads, dim]

`aura.transformers.AuraCache` is a cache for transformers' generate(); `aura.torch` has the operator torch.ops.aura.attend.
"""
from ._cache import Cache, Flags, Sequence
from ._lib import Context, Error, Status, version as __version__
from ._models import ModelCache, ModelSequence
from ._profiles import Profile, calibrate, formats, quantize_dequantize

__all__ = ["Cache", "Context", "Error", "Flags", "ModelCache", "ModelSequence", "Profile", "Sequence", "Status", "calibrate", "formats",
           "quantize_dequantize", "__version__"]
