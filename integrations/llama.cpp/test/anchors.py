#!/usr/bin/env python3
"""anchors.py BIN MODEL OUT: an edit of edit.py whose anchor is gone, or is there twice, says which file and which anchor, and so does one
whose function is gone: each edit, one after the other. Nothing is written then. And README.md has every reason why a cache falls back."""
import importlib.util
import os
import re
import subprocess
import sys

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TO = os.path.abspath(sys.argv[3]) + "/anchors"


def moved(source, number, how):
    """All edits; before that with this number upstream moves. What should be said, and what is; None: there are not so many."""
    spec = importlib.util.spec_from_file_location("edit", TOP + "/edit.py")
    them = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(them)
    real, calls, want = them.edit, 0, None

    def edit(path, anchor, new, place=None, end="\n}"):
        nonlocal calls, want
        if calls == number:
            if path not in them.texts:
                with open(os.path.join(source, path)) as file:
                    them.texts[path] = file.read()
            text = them.texts[path]
            what = place if how == "its function is gone" and place else anchor
            at = text.index(what, text.index(place) if place else 0)
            instead = what + what if how == "twice" else "elsewhere"
            them.texts[path] = text[:at] + instead + text[at + len(what):]
            want = path, what.strip()
        calls += 1
        real(path, anchor, new, place, end)
    them.edit, them.source = edit, source
    try:
        them.edits()
    except SystemExit as why:
        return want, str(why)
    return want, ""


def anchors(source):
    """Whether all is said, and how often."""
    tried = 0
    for how in "gone", "twice", "its function is gone":
        number, (want, said) = 0, moved(source, 0, how)
        while want:
            if "llama.cpp has moved" not in said or not all(word in said for word in want):
                return False, f"{how}: {want}: {said or 'nothing is said'}"
            number, tried = number + 1, tried + 1
            want, said = moved(source, number, how)
    return tried > 100, f"{tried} moves of upstream"


def nothing_written(source):
    """edit.py itself, on a source of which one file is left."""
    os.makedirs(TO + "/from/src", exist_ok=True)
    done = subprocess.run([sys.executable, TOP + "/edit.py", TO + "/from", TO + "/to"], capture_output=True, text=True)
    return done.returncode == 1 and "llama.cpp has moved: ggml/include/ggml.h" in done.stderr and not os.path.exists(TO + "/to"), done.stderr.strip()


def reasons(_):
    """Every text that the code gives as a reason is in the table of README.md."""
    with open(TOP + "/llama-kv-aura.cpp") as code, open(TOP + "/README.md") as page:
        text, table = code.read(), " ".join(page.read().split())
    found = re.findall(r'(?:return|why =) "([^"]+)";', text)
    missing = [why for why in found if why not in table]
    return len(found) > 8 and not missing, f"not in README.md: {missing}" if missing else f"{len(found)} reasons"


def main():
    sys.dont_write_bytecode = True
    source = subprocess.run([TOP + "/../../tool/bench/peers/source.sh"], capture_output=True, text=True).stdout.split()[-1:]
    if not source:
        print("skip anchors: no source of llama.cpp")
        return 0
    status = 0
    for name, proof in ("each that moved is named", anchors), ("nothing is written then", nothing_written), ("README.md has the reasons", reasons):
        good, said = proof(source[0])
        print(f"{'ok' if good else 'FAIL'} anchors: {name}: {said}")
        status |= not good
    return status


sys.exit(main())
