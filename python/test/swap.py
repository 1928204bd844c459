"""A plugin of pytest, for transformers' own tests: pytest -p swap. Every DynamicCache of transformers is an AuraCache, in AURA_FORMAT
(kf32vf32: the numbers as they are), and with AURA_ATTENTION=aura whoever asks for "sdpa" gets aura's function and mask."""
import os
import sys

import transformers.cache_utils as cache_utils

import aura.transformers as ours

FORMAT, REAL = os.environ.get("AURA_FORMAT", "kf32vf32"), cache_utils.DynamicCache


class DynamicCache(ours.AuraCache):
    def __init__(self, ddp_cache_data=None, config=None, offloading=False, offload_only_non_sliding=False):
        super().__init__(config, FORMAT, prefill=os.environ.get("AURA_PREFILL", "exact"))
        for i, (k, v, *_) in enumerate(ddp_cache_data or []):
            self.update(k, v, i)


# Whoever imports the name later finds it in cache_utils; who has it already is given the other.
for name, module in list(sys.modules.items()):
    if name.startswith("transformers") and vars(module).get("DynamicCache") is REAL:
        module.DynamicCache = DynamicCache
if os.environ.get("AURA_ATTENTION") == "aura":
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register("sdpa", ours.attention)
    AttentionMaskInterface.register("sdpa", ours.mask)


def pytest_sessionfinish(session, exitstatus):
    print(f"\naura: {ours.counts}")
