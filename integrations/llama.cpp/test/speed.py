#!/usr/bin/env python3
"""speed.py DIR: the table of test/run.sh's speed: tokens per second of prompts and of generation behind some tokens, the best of the
rounds, and how many times f16's. Ends with 1 where a promise of the README is not kept."""
import glob
import json
import sys

TYPES = ["f16", "aura4", "aura8", "q8_0", "q4_0"]
best = {}
for path in glob.glob(sys.argv[1] + "/speed.*.json"):
    with open(path) as f:
        for row in json.load(f):
            what = "prompt" if row["n_prompt"] else "generation"
            key = (what, row["n_depth"], row["type_k"])
            best[key] = max(best.get(key, 0), row["avg_ts"])
cases = sorted({key[:2] for key in best})
print("| | " + " | ".join(TYPES) + " | aura4 / f16 | aura8 / f16 |")
print("|---|" + "---|" * (len(TYPES) + 2))
bad = []
for what, depth in cases:
    t = {kind: best.get((what, depth, kind), 0) for kind in TYPES}
    four, eight = t["aura4"] / t["f16"], t["aura8"] / t["f16"]
    print(f"| {what} behind {depth} | " + " | ".join(f"{t[kind]:.1f}" for kind in TYPES) + f" | {four:.2f} | {eight:.2f} |")
    least = {("generation", 8192): 2.5, ("prompt", 8192): 1.3}.get((what, depth), 1.0)
    if four < least or eight < 1.0:
        bad.append(f"{what} behind {depth}")
print("missed: " + ", ".join(bad) if bad else "all as promised")
sys.exit(bool(bad))
