#!/usr/bin/env python3
"""states.py BIN MODEL OUT [NAME ...]: llama.cpp's own tests of states, unmodified, on every small model there is, with caches of aura's.
A model without such a cache is listed with the reason that the log gives. The table is OUT/states.md. NAME: only models with it in
their names. TINY is the directory of the models, LLAMA_AURA the format.

A model passes when it has all nine parts of test-save-load-state and test-state-restore-fragmented. Where it has not, the same
program runs with llama.cpp's own cache: what that cannot do either is said and is no failure of ours."""
import glob
import os
import re
import subprocess
import sys

PARTS = 9  # of test-save-load-state
FORMAT = os.environ.get("LLAMA_AURA", "k4v4")


def run(program, path, out, aura):
    """What it printed, and whether it ended well. It leaves a file where it runs."""
    environment = {k: v for k, v in os.environ.items() if k != "LLAMA_AURA"}
    environment["OMP_WAIT_POLICY"] = "passive"
    if aura:
        environment["LLAMA_AURA"] = FORMAT
    try:
        done = subprocess.run([program, "-m", path, "-t", "2", "-lv", "5"], cwd=out, env=environment, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=300)
    except subprocess.TimeoutExpired as late:
        return (late.stdout or b"").decode(errors="replace") + "\ntook more than 300 s", False
    return done.stdout.decode(errors="replace"), done.returncode == 0


def saved(said, well):
    """How many of the nine parts passed: all, where it ends well (the end of its log may be lost then); else those that say so. The
    first prints what it generated, not that it passed."""
    if well:
        return PARTS
    parts = re.split(r"=== Test (\d+): ", said)[1:]
    passed = sum(bool(re.search(r"^PASS", text, re.M)) for number, text in zip(parts[::2], parts[1::2]) if number != "1")
    return passed + bool(re.search(r"=== Test 1: baseline ===\n\s*\d", said))


def last(said):
    lines = [line for line in said.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it printed nothing"


def model(path, bin, out):
    """What happened on a model, and the line about it."""
    said, well = run(bin + "/test-save-load-state", path, out, True)
    without = re.search(r"no aura cache for this model \([^)]*\): (.*); f16 instead", said)
    if without or "make: aura " not in said:
        return "back", without.group(1) if without else "it has no keys and values to hold"
    passed = saved(said, well)
    more, fragmented = run(bin + "/test-state-restore-fragmented", path, out, True)
    if passed == PARTS and fragmented:
        return "ok", f"{passed} of {PARTS}, fragmented"
    theirs = saved(*run(bin + "/test-save-load-state", path, out, False))
    if (passed, fragmented) == (theirs, run(bin + "/test-state-restore-fragmented", path, out, False)[1]):
        return "same", f"{passed} of {PARTS}{', fragmented' if fragmented else ''}, as with llama.cpp's own cache"
    why = last(said) if passed < PARTS else last(more)
    return "bad", f"{passed} of {PARTS}, fragmented {'passes' if fragmented else 'fails'}: {why}"


def main():
    bin, big, out, names = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]
    bin, out = os.path.abspath(bin), os.path.abspath(out)
    for program in "test-save-load-state", "test-state-restore-fragmented":
        if not os.access(f"{bin}/{program}", os.X_OK):
            print(f"skip states: {program} is not built")
            return 0
    tiny = os.environ.get("TINY", os.path.join(bin, "../../tiny"))
    paths = [p for p in [os.path.abspath(big)] + sorted(glob.glob(tiny + "/*.gguf")) if os.path.exists(p)]
    paths = [p for p in paths if not names or any(n in os.path.basename(p) for n in names)]
    if not paths:
        print(f"skip states: no models in {tiny}: test-llama-archs -o makes them")
        return 0
    rows = [(os.path.basename(p)[:-5],) + model(p, bin, out) for p in paths]
    with open(out + "/states.md", "w") as file:
        file.write(f"| model | {FORMAT} |\n|---|---|\n" + "".join(f"| {name} | {line} |\n" for name, _, line in rows))
    count = {kind: sum(row[1] == kind for row in rows) for kind in ("ok", "same", "back", "bad")}
    for name, kind, line in rows:
        if kind != "ok":
            print({"bad": "FAIL", "same": "skip", "back": "skip"}[kind] + f" states {name}: {line}")
    figures = f"{count['ok']} models pass all of both in {FORMAT}, {count['same']} as much as with f16, {count['back']} are not aura's"
    print(("FAIL" if count["bad"] or not count["ok"] else "ok") + f" states: {figures}, {count['bad']} fail")
    return count["bad"] > 0 or not count["ok"]


sys.exit(main())
