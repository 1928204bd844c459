"""python -m aura.bench --model FILE.gguf|FOLDER: tokens per second, memory and divergence of caches under transformers, side by side.

A text is read once with DynamicCache; all caches get the same keys and values, and then, in turns, the same next tokens. Times are medians
over steps of the whole model, so that what else the machine does meets all alike."""
from __future__ import annotations

import argparse
import os
import pathlib
import statistics
import time
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, QuantizedCache

from .transformers import AuraCache, AuraLayer

CACHES = {  # name: (attention, cache of a configuration and a number of threads)
    "dynamic": ("sdpa", lambda config, threads: DynamicCache(config=config)),
    "aura k4v4": ("aura", lambda config, threads: AuraCache(config, "k4v4", threads=threads)),
    "aura k8v8": ("aura", lambda config, threads: AuraCache(config, "k8v8", threads=threads)),
    "aura kf16vf16": ("aura", lambda config, threads: AuraCache(config, "kf16vf16", threads=threads)),
    "aura k4v4, sdpa": ("sdpa", lambda config, threads: AuraCache(config, "k4v4", threads=threads)),
    "quanto 4": ("sdpa", lambda config, threads: QuantizedCache("quanto", config, nbits=4)),
    "hqq 4": ("sdpa", lambda config, threads: QuantizedCache("hqq", config, nbits=4, axis_key=1, axis_value=1)),
}


def load(path: str, dtype: str = "float32") -> tuple[Any, Any]:
    """A model and its tokenizer, from a folder of transformers' or a file of llama.cpp's (which needs the packages gguf and accelerate)."""
    where = pathlib.Path(path)
    given = dict(gguf_file=where.name) if where.is_file() else {}
    folder = where.parent if where.is_file() else where
    tokenizer = AutoTokenizer.from_pretrained(folder, **given)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), **given)
    return model.eval(), tokenizer


def bytes_of(cache: Any) -> int | None:
    """What a cache takes; None where it does not say."""
    if isinstance(cache, AuraCache):
        return cache.bytes
    if type(cache) is DynamicCache:
        return sum(x.numel() * x.element_size() for layer in cache.layers for x in (layer.keys, layer.values))
    return None


def read(model: Any, ids: torch.Tensor, keep: str | None) -> DynamicCache:
    """The keys and values of a text."""
    like = DynamicCache(config=model.config)
    if keep and os.path.exists(keep):
        for i, (k, v) in enumerate(torch.load(keep)):
            like.update(k, v, i)
        return like
    model.set_attn_implementation("sdpa")
    for first in range(0, ids.shape[1], 512):
        model.model(input_ids=ids[:, first : first + 512], past_key_values=like)
    if keep:
        torch.save([(layer.keys, layer.values) for layer in like.layers], keep)
    return like


def filled(name: str, model: Any, like: DynamicCache, tokens: int, threads: int) -> Any:
    cache = CACHES[name][1](model.config, threads)
    for i, layer in enumerate(like.layers):
        cache.update(layer.keys[:, :, :tokens], layer.values[:, :, :tokens], i)
        if isinstance(cache.layers[i], AuraLayer):
            cache.layers[i].flush()
    return cache


@torch.no_grad()
def measure(model: Any, ids: torch.Tensor, like: DynamicCache, tokens: int, steps: int, names: list[str], threads: int) -> list[dict]:
    caches, rows = {}, {name: dict(name=name, tokens=tokens, ms=[], kld=[], top=0) for name in names}
    for name in list(names):
        try:
            caches[name] = filled(name, model, like, tokens, threads)
        except ImportError as error:
            print(f"{name}: {str(error).splitlines()[0]}")
            del rows[name]
    for step in range(steps + 2):  # two to warm up
        exact = None
        for name, cache in caches.items():
            model.set_attn_implementation(CACHES[name][0])
            start = time.perf_counter()
            logits = model(input_ids=ids[:, tokens + step : tokens + step + 1], past_key_values=cache).logits[0, -1]
            took = (time.perf_counter() - start) * 1e3
            log = torch.log_softmax(logits.double(), -1)
            exact = log if exact is None else exact
            if step >= 2:
                row = rows[name]
                row["ms"].append(took)
                row["kld"].append(float((exact.exp() * (exact - log)).sum()))
                row["top"] += int(log.argmax() == exact.argmax())
    for name, cache in caches.items():
        row = rows[name]
        row.update(median=statistics.median(row["ms"]), least=min(row["ms"]), bytes=bytes_of(cache), kld=statistics.mean(row["kld"]), steps=steps)
    return list(rows.values())


@torch.no_grad()
def main() -> None:
    asked = argparse.ArgumentParser(prog="python -m aura.bench", description=__doc__.split("\n")[0])
    asked.add_argument("--model", required=True)
    asked.add_argument("--text", help="a file; without it, random tokens")
    asked.add_argument("--tokens", default="512,2048,8000")
    asked.add_argument("--steps", type=int, default=10)
    asked.add_argument("--threads", type=int, default=torch.get_num_threads())
    asked.add_argument("--dtype", default="float32")
    asked.add_argument("--keep", help="a file for what reading the text gives, which takes longest: read where it is there, else written")
    asked.add_argument("--caches", default=",".join(name for name in CACHES if "," not in name), help=f"of {'; '.join(CACHES)}")
    given = asked.parse_args()
    torch.set_num_threads(given.threads)
    model, tokenizer = load(given.model, given.dtype)
    lengths = sorted(int(n) for n in given.tokens.split(","))
    if given.text:
        ids = tokenizer(pathlib.Path(given.text).read_text(), return_tensors="pt")["input_ids"]
    else:
        ids = torch.randint(1000, model.config.vocab_size, (1, lengths[-1] + given.steps + 2), generator=torch.manual_seed(0))
    if ids.shape[1] < lengths[-1] + given.steps + 2:
        asked.error(f"the text has {ids.shape[1]} tokens")
    like = read(model, ids[:, : lengths[-1]], given.keep)
    print(f"torch {torch.__version__}, {given.threads} threads, {given.dtype}; times in ms for a token of the whole model")
    print(f"{'tokens':>6} {'cache':16} {'median':>8} {'least':>8} {'tokens/s':>9} {'faster':>7} {'MB':>8} {'KLD':>9} {'same top':>9}")
    for tokens in lengths:
        rows = measure(model, ids, like, tokens, given.steps, given.caches.split(","), given.threads)
        base = rows[0]["median"]
        for row in rows:
            size = f"{row['bytes'] / 1e6:8.1f}" if row["bytes"] else "       -"
            print(f"{tokens:6} {row['name']:16} {row['median']:8.1f} {row['least']:8.1f} {1e3 / row['median']:9.1f} {base / row['median']:6.2f}x"
                  f" {size} {row['kld']:9.1e} {row['top']:6}/{row['steps']}", flush=True)


if __name__ == "__main__":
    main()
