"""python -m aura.bench_cuda: a model like Llama with random weights on a GPU: time of a token and memory, with AuraCache and DynamicCache.

32 layers of 32/8 heads of 128, bfloat16; the rest is small, so that attention is what takes time: hidden size 1024, 1024 words. All caches
get the same keys and values, random numbers, and then tokens in turns. "attention" is update() and the attention function of all
layers, without the rest of the model; "token" is the model. Times are medians."""
from __future__ import annotations

import argparse
import statistics
import time
from typing import Any, Callable

import torch
import transformers
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .bench import bytes_of
from .transformers import AuraCache, AuraLayer


def made(layers: int) -> Any:
    config = transformers.LlamaConfig(vocab_size=1024, hidden_size=1024, intermediate_size=1024, num_hidden_layers=layers, num_attention_heads=32,
                                      num_key_value_heads=8, head_dim=128, max_position_embeddings=1 << 20, eos_token_id=None)
    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        return transformers.LlamaForCausalLM(config).eval()


def filled(cache: Any, rows: int, tokens: int, layers: int) -> Any:
    torch.manual_seed(2)
    k, v = (torch.randn(rows, 8, tokens, 128, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    for i in range(layers):
        cache.update(k, v, i)
        if isinstance(cache.layers[i], AuraLayer):
            cache.layers[i].flush()
        else:
            cache.layers[i].keys, cache.layers[i].values = k.clone(), v.clone()
    return cache


def taken(call: Callable) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3


def attention(model: Any, name: str, cache: Any, tokens: int) -> None:
    """update() and attention of every layer; the next tokens are zeros."""
    rows = cache.layers[0].keys.shape[0]
    function = ALL_ATTENTION_FUNCTIONS[name]
    q, k = (torch.zeros(rows, heads, tokens, 128, device="cuda", dtype=torch.bfloat16) for heads in (32, 8))
    for i, layer in enumerate(model.model.layers):
        key, value = cache.update(k, k, i)
        function(layer.self_attn, q, key, value, None, scaling=128**-0.5, dropout=0.0)


@torch.no_grad()
def measure(model: Any, rows: int, tokens: int, steps: int, prompt: int) -> None:
    layers, out = len(model.model.layers), {}
    caches = {"dynamic": ("sdpa", transformers.DynamicCache(config=model.config)),
              "aura k4v4": ("aura", AuraCache(model.config, "k4v4", max_tokens=tokens + 2 * steps + 6 + (prompt if rows == 1 else 0)))}
    ids = torch.randint(0, 1024, (rows, 1), device="cuda")
    times: dict = {name: dict(token=[], attention=[]) for name in caches}
    for name, (_, cache) in caches.items():
        filled(cache, rows, tokens, layers)
    for step in range(steps + 3):
        for name, (way, cache) in caches.items():
            model.set_attn_implementation(way)
            token = taken(lambda: out.__setitem__(name, model(input_ids=ids, past_key_values=cache).logits[:, -1].float()))
            alone = taken(lambda: attention(model, way, cache, 1))
            if step >= 3:
                times[name]["token"].append(token)
                times[name]["attention"].append(alone)
    first = {key: statistics.median(values) for key, values in times["dynamic"].items()}
    size = bytes_of(caches["dynamic"][1])
    for name, (_, cache) in caches.items():
        token, alone = (statistics.median(times[name][key]) for key in ("token", "attention"))
        print(f"{rows} x {tokens:6} {name:10} token {token:8.2f} ms {first['token'] / token:5.2f}x   attention {alone:8.2f} ms "
              f"{first['attention'] / alone:5.2f}x   cache {bytes_of(cache) / 1e9:6.2f} GB {size / bytes_of(cache):5.2f}x", flush=True)
    a, b = (out[name].log_softmax(-1).double() for name in ("dynamic", "aura k4v4"))
    print(f"  KLD {float((a.exp() * (a - b)).sum(-1).mean()):.1e}, torch {torch.cuda.max_memory_allocated() / 1e9:.1f} GB at most")
    if prompt:
        chunk = torch.randint(0, 1024, (rows, prompt), device="cuda")
        for name, (way, cache) in caches.items():
            model.set_attn_implementation(way)
            took = []
            for _ in range(4):
                took.append(taken(lambda: model(input_ids=chunk, past_key_values=cache, logits_to_keep=1)))
                cache.crop(-prompt)
            print(f"{rows} x {tokens:6} {name:10} {prompt} more tokens {statistics.median(took[1:]):8.2f} ms", flush=True)


def main() -> None:
    asked = argparse.ArgumentParser(prog="python -m aura.bench_cuda", description=__doc__.split("\n")[0])
    asked.add_argument("--shapes", default="8x32768,1x131072", help="rows x tokens")
    asked.add_argument("--steps", type=int, default=15)
    asked.add_argument("--layers", type=int, default=32)
    asked.add_argument("--prompt", type=int, default=2048, help="tokens of a prompt's next part, for the shapes of one row; 0: none")
    given = asked.parse_args()
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, {torch.cuda.get_device_name()}, {given.layers} layers")
    model = made(given.layers)
    for shape in given.shapes.split(","):
        rows, tokens = map(int, shape.split("x"))
        measure(model, rows, tokens, given.steps, given.prompt if rows == 1 else 0)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


if __name__ == "__main__":
    main()
