#!/usr/bin/env python3
"""torch's scaled_dot_product_attention in fp16 on the shapes of `aura bench --device cuda`, in the same way: CUDA events, the median
of 41 runs, and before each run the second cache filled by reading 512 MB. Needs torch with CUDA, and nothing else here does.

    python3 tool/bench/torch_sdpa.py [--json]

The call is timed with every backend of torch that takes it, and the fastest is told. Sequences of different lengths are padded to the
longest and masked, which is what this function has for them. Several queries are tried in three ways, and the fastest is told: the
rows of a KV head packed as if they were queries, without a mask, which is a little more work than was asked for; as they are, without
a mask; and causally."""
import json
import sys
import warnings

try:
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.attention.bias import causal_lower_right
except ImportError as missing:
    sys.exit(f"torch_sdpa.py: {missing}; torch with CUDA is needed for this comparison, and only for it")

RUNS, WARM_UP = 41, 2
FLUSH_BYTES = 512 << 20

# (dim, query heads, KV heads, lengths, queries): the shapes of tool/bench/bench_cuda.cu; torch has one format, so those that differ
# by format alone are there once.
RAGGED = [1, 65536, 50000, 1000, 65536, 40000, 30071, 10000]
SHAPES = [
    (128, 32, 8, [8192], 1),
    (128, 32, 8, [32768], 1),
    (128, 32, 8, [131072], 1),
    (128, 32, 8, [8192] * 8, 1),
    (128, 32, 8, [32768] * 8, 1),
    (128, 32, 8, [8192] * 32, 1),
    (64, 32, 8, [32768] * 8, 1),
    (256, 32, 8, [32768] * 8, 1),
    (128, 64, 8, [32768] * 8, 1),
    (128, 8, 8, [32768] * 8, 1),
    (128, 32, 8, [32768] * 8, 4),
    (128, 32, 8, [32768] * 8, 16),
    (128, 32, 8, RAGGED, 1),
    (128, 32, 8, [32768], 2048),
    (128, 32, 8, [32768], 512),
    (128, 32, 8, [8192], 2048),
    (128, 32, 8, [32768] * 8, 64),
    (64, 32, 8, [32768], 2048),
    (256, 32, 8, [32768], 2048),
]


class Timer:
    def __init__(self):
        self.flush = torch.ones(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")
        self.begin, self.end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def median_us(self, run):
        times = []
        for i in range(RUNS + WARM_UP):
            self.flush.sum()
            self.begin.record()
            run()
            self.end.record()
            self.end.synchronize()
            if i >= WARM_UP:
                times.append(self.begin.elapsed_time(self.end) * 1e3)
        return sorted(times)[len(times) // 2]


def name_of(lengths):
    """As `aura bench --device cuda` names its rows."""
    shortest, longest = min(lengths), max(lengths)
    return f"{len(lengths)} x {longest}" if shortest == longest else f"{len(lengths)} of {shortest} to {longest}"


def mask_of(lengths):
    """None where every sequence has every key; otherwise which keys each has."""
    longest = max(lengths)
    if min(lengths) == longest:
        return None
    key, end = torch.arange(longest, device="cuda"), torch.tensor(lengths, device="cuda")
    return (key[None, :] < end[:, None])[:, None, None]


def time_backends(timer, q, k, v, mask, grouped):
    """(microseconds, name) of the fastest backend that takes the call."""
    best = None
    for name in ("FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION", "MATH"):
        backend = getattr(SDPBackend, name, None)
        if backend is None:
            continue
        try:
            with sdpa_kernel(backend):
                us = timer.median_us(lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=grouped))
        except RuntimeError:  # it has no kernel for this, or no memory
            torch.cuda.empty_cache()
            continue
        if best is None or us < best[0]:
            best = us, name.lower()
    return best


def run_shape(timer, dim, q_heads, kv_heads, lengths, queries):
    def some(heads, tokens):
        return torch.randn(len(lengths), heads, tokens, dim, dtype=torch.float16, device="cuda")

    longest = max(lengths)
    q, k, v = some(q_heads, queries), some(kv_heads, longest), some(kv_heads, longest)
    if queries == 1:
        best = time_backends(timer, q, k, v, mask_of(lengths), q_heads != kv_heads)
    else:
        packed = q.reshape(len(lengths), kv_heads, q_heads // kv_heads * queries, dim)
        ways = [(packed, None, False), (q, None, True), (q, causal_lower_right(queries, longest), True)]
        told = [time_backends(timer, rows, k, v, mask, grouped) for rows, mask, grouped in ways]
        best = min((t for t in told if t), default=None)
    return {
        "dim": dim, "q_heads": q_heads, "kv_heads": kv_heads, "batch": len(lengths),
        **({"tokens": longest} if min(lengths) == longest else {"lengths": lengths}),
        "queries": queries, "attend_us": best and best[0], "backend": best and best[1],
    }


def main(arguments):
    as_json = arguments == ["--json"]
    if arguments and not as_json:
        print(__doc__.split("\n\n")[1].strip(), file=sys.stderr)
        return 2
    if not torch.cuda.is_available():
        print("torch_sdpa.py: torch finds no CUDA device", file=sys.stderr)
        return 1
    torch.manual_seed(1)
    warnings.filterwarnings("ignore", category=UserWarning)  # why a backend does not take a call
    timer, rows = Timer(), []
    if not as_json:
        print(f"torch {torch.__version__} on {torch.cuda.get_device_name()}; medians of {RUNS} runs, second cache flushed by a read")
    for shape in SHAPES:
        row = run_shape(timer, *shape)
        rows.append(row)
        torch.cuda.empty_cache()
        if not as_json:
            told = f"attend {row['attend_us']:7.1f} us  {row['backend']}" if row["attend_us"] else "no backend takes it"
            print(f"fp16   D{row['dim']:<3} {row['q_heads']:2}/{row['kv_heads']:<2} {name_of(shape[3]):>15} q{row['queries']:<4}"
                  f"    {told}", flush=True)
    if as_json:
        print(json.dumps({"torch": torch.__version__, "device": torch.cuda.get_device_name(), "rows": rows}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
