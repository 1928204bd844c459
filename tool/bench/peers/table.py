#!/usr/bin/env python3
"""What tool/bench/peers/run.sh left in a directory, as peers.md and peers.json there."""
import glob
import json
import math
import os
import re
import statistics
import sys

LEAST_EQUAL = 64  # tokens of each prompt
MOST_APART = 0.005  # the mean of the logarithms of perplexities; see test/model/model.sh


def read(path):
    with open(path) as file:
        return file.read()


def tokens(directory):
    """Whether both have the same tokens for the page, read as text and with names of control tokens."""
    rows = []
    for path in sorted(glob.glob(directory + "/tokens.*.llama")):
        how = path.split(".")[-2]
        theirs = [int(x) for x in read(path).split()]
        ours = json.loads(read(path.replace(".llama", ".aura")))["tokens"]
        rows.append({"how": how, "tokens": len(theirs), "equal": ours == theirs})
    return rows


def greedy(directory):
    """How many tokens are equal from the first on."""
    rows = []
    for path in sorted(glob.glob(directory + "/greedy.*.prompt")):
        lines = read(path.replace(".prompt", ".llama")).splitlines()
        theirs = [int(x) for x in lines[0].split()]
        ours = json.loads(read(path.replace(".prompt", ".aura")))["tokens"]
        equal = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
        rows.append({"prompt": read(path).rstrip("\n"), "tokens": len(theirs), "equal": equal, "margin": float(lines[1])})
    return rows


def perplexity(directory):
    rows = []
    for path in sorted(glob.glob(directory + "/perplexity.*.llama")):
        theirs = float(re.search(r"Final estimate: PPL = ([0-9.]+)", read(path)).group(1))
        found = json.loads(read(path.replace(".llama", ".aura")))
        caches = found if isinstance(found, list) else found["caches"]
        ours = next(c["ppl"] for c in caches if c["cache"] == "f16")
        rows.append({"text": path.split(".")[-2], "llama.cpp": theirs, "aura": ours, "apart": abs(ours / theirs - 1)})
    return rows


def speed(directory):
    """Tokens a second of each cache and depth, both the mean of a round's tokens; the median of the rounds."""
    found = {}
    for path in glob.glob(directory + "/speed.*.llama"):
        for test in json.loads(read(path)):
            found.setdefault(("llama.cpp", test["type_k"], test["n_depth"]), []).append(test["avg_ts"])
    for path in glob.glob(directory + "/speed.*.aura"):
        for row in json.loads(read(path))["rows"]:
            found.setdefault(("aura", row["cache"], row["depth"]), []).append(1000 / row["mean_ms"])
    return medians(found)


def prompts(directory):
    """Tokens a second of prompts as a whole; the median of the rounds."""
    found = {}
    for path in glob.glob(directory + "/prompt.*.llama"):
        for test in json.loads(read(path)):
            found.setdefault(("llama.cpp", test["type_k"], test["n_prompt"]), []).append(test["avg_ts"])
    for path in glob.glob(directory + "/prompt.*.aura"):
        for row in json.loads(read(path))["rows"]:
            found.setdefault(("aura", row["cache"], row["prompt_tokens"]), []).append(row["prompt_tokens_per_s"])
    return medians(found)


def medians(found):
    return [
        {"program": program, "cache": cache, "depth": depth, "tokens_per_s": round(statistics.median(all), 2), "rounds": len(all)}
        for (program, cache, depth), all in sorted(found.items())
    ]


def machine():
    names = [x.split(":", 1)[1].strip() for x in read("/proc/cpuinfo").splitlines() if x.startswith("model name")]
    return {"cpu": names[0] if names else "unknown CPU", "cpus": os.cpu_count()}


def speed_table(rows, column):
    depths = sorted({r["depth"] for r in rows})
    base = {r["depth"]: r["tokens_per_s"] for r in rows if (r["program"], r["cache"]) == ("llama.cpp", "f16")}
    order = {"f16": 0, "q8_0": 1, "q4_0": 2, "kf16vf16": 3, "k8v8": 4, "k4v4": 5, "k3v3": 6}
    lines = []
    for key in sorted({(r["program"], r["cache"]) for r in rows}, key=lambda k: order.get(k[1], 9)):
        cells = {r["depth"]: r["tokens_per_s"] for r in rows if (r["program"], r["cache"]) == key}
        text = ["%.1f (%.2f×)" % (cells[d], cells[d] / base[d]) if d in cells and base.get(d) else "–" for d in depths]
        lines.append("| %s, %s | %s |" % (*key, " | ".join(text)))
    return "| tokens/s, and times llama.cpp's f16 | %s |" % " | ".join(column % d for d in depths), lines


def targets(rows):
    """What the time of a token is meant to be beside llama.cpp's with an f16 cache."""
    time = {(r["program"], r["cache"], r["depth"]): 1 / r["tokens_per_s"] for r in rows}
    for cache, depth, most in (("kf16vf16", 0, 1.3), ("k4v4", 0, 1.3), ("k4v4", 8192, 0.5)):
        ours, theirs = time.get(("aura", cache, depth)), time.get(("llama.cpp", "f16", depth))
        if ours and theirs:
            yield {"cache": cache, "depth": depth, "times": round(ours / theirs, 3), "most": most}


def tables(result):
    """The head and the rows of each; a part that did not run has none."""
    yield "| tokens of a page of awkward text | number | equal |", [
        "| %s | %d | %s |" % (r["how"], r["tokens"], "yes" if r["equal"] else "NO") for r in result["tokens"]]
    yield "| greedy decoding, f16 cache | tokens equal | closest decision, logits |", [
        "| `%s` | %d of %d | %.2f |" % (r["prompt"], r["equal"], r["tokens"], r["margin"]) for r in result["greedy"]]
    yield "| perplexity, f16 cache | llama.cpp | aura | apart |", [
        "| %s | %.4f | %.4f | %.2f %% |" % (r["text"], r["llama.cpp"], r["aura"], 100 * r["apart"]) for r in result["perplexity"]]
    yield speed_table(result["speed"], "behind %d tokens")
    yield speed_table(result["prompts"], "a prompt of %d")


def markdown(result):
    m = result["machine"]
    yield "llama.cpp of llama-cpp-python 0.3.36, compiler flags besides its own: %s; beside aura on %s, %d processors; `make peers`." % (
        result["flags"], m["cpu"], m["cpus"])
    yield ""
    for head, rows in tables(result):
        if rows:
            yield head
            yield re.sub("[^|]+", "---", head)
            yield from rows
            yield ""
    for r in result["targets"]:
        yield "A token of %s behind %d tokens takes %.2f times as long as llama.cpp's with f16; it should be %.1f at most." % (
            r["cache"], r["depth"], r["times"], r["most"])


def main(directory):
    result = {"machine": machine(), "flags": read(directory + "/flags").strip(), "tokens": tokens(directory), "greedy": greedy(directory), "perplexity": perplexity(directory),
              "speed": speed(directory), "prompts": prompts(directory)}
    apart = [math.log(r["aura"] / r["llama.cpp"]) for r in result["perplexity"]]
    result["targets"] = list(targets(result["speed"]))
    result["good"] = (
        all(r["equal"] for r in result["tokens"])
        and all(r["equal"] >= LEAST_EQUAL for r in result["greedy"])
        and abs(statistics.mean(apart or [0])) <= MOST_APART
    )
    with open(directory + "/peers.json", "w") as file:
        json.dump(result, file, indent=1)
    with open(directory + "/peers.md", "w") as file:
        file.write("\n".join(markdown(result)) + "\n")


main(sys.argv[1])
