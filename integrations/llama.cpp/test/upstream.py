#!/usr/bin/env python3
"""upstream.py BIN MODEL OUT [FILE ...]: llama-server's own tests, those that need no more than a model to complete texts. They are not
changed: a plugin gives them MODEL instead of the one that they would fetch. That is another model, so some fail with any cache, and some
depend on the text that a seed happens to give: what passes with llama.cpp's f16 and with its f32 must pass with aura's, in kf32vf32 and
k8v8. pip fetches what the tests import, into a folder beside BIN."""
import os
import re
import subprocess
import sys
import venv

BIN, MODEL, OUT = (os.path.abspath(path) for path in sys.argv[1:4])
TOP = os.path.dirname(os.path.dirname(BIN))
TESTS = TOP + "/llama.cpp/tools/server/tests"
HOME = TOP + "/server-venv"
NEEDS = ["pytest", "filelock", "requests", "aiohttp", "openai", "prometheus-client", "numpy", "wget"]
FILES = sys.argv[4:] or ["basic", "completion", "ctx_shift", "ignore_eos", "kv_keep_only_active", "slot_save", "stream", "tokenize"]
# It wants five tokens of a text that is drawn by lot, which may end before. With f16 and f32 two different texts happen to be longer.
CHANCE = {"unit/test_completion.py::test_n_probs_post_sampling"}
# It wants the same text from a prompt that was computed and from one that was cut to, bit for bit. Codes are made some tokens later.
LATE = {"unit/test_completion.py::test_completion_with_tokens_input"}
PLUGIN = """import os
import utils
theirs = utils.ServerPreset.tinyllama2


def ours():
    server = theirs()
    server.model_hf_repo = server.model_hf_file = None
    server.model_file = os.environ["SERVER_MODEL"]
    return server


utils.ServerPreset.tinyllama2 = staticmethod(ours)
utils.ServerPreset.load_all = staticmethod(lambda: None)
"""


def python():
    """An interpreter with what the tests import, or None."""
    path = HOME + "/bin/python"
    try:
        if not os.path.exists(path):
            venv.create(HOME, with_pip=True)
        if subprocess.run([path, "-c", "import pytest, filelock, requests, aiohttp, openai, wget"], stderr=subprocess.DEVNULL).returncode:
            subprocess.run([path, "-m", "pip", "install", "-q", *NEEDS], check=True, stderr=subprocess.DEVNULL, timeout=600)
    except (OSError, subprocess.SubprocessError):
        return None
    return path


def run(path, name):
    """The tests that passed with a cache, and those that did not."""
    environment = {k: v for k, v in os.environ.items() if k != "LLAMA_AURA"}
    environment.update(SERVER_MODEL=MODEL, LLAMA_SERVER_BIN_PATH=BIN + "/llama-server", PYTHONPATH=f"{OUT}:{TESTS}", OMP_WAIT_POLICY="passive")
    if name.startswith("k"):
        environment["LLAMA_AURA"] = name
    else:
        environment.update(LLAMA_ARG_CACHE_TYPE_K=name, LLAMA_ARG_CACHE_TYPE_V=name, LLAMA_ARG_FLASH_ATTN="off" if name == "f32" else "auto")
    files = [f"unit/test_{name}.py" for name in FILES]
    done = subprocess.run([path, "-m", "pytest", "-q", "-p", "server_presets", "-p", "no:cacheprovider", "-m", "not slow", "-rA", *files],
                          cwd=TESTS, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    with open(f"{OUT}/upstream.{name}.log", "w") as file:
        file.write(done.stdout)
    found = re.findall(r"^(PASSED|FAILED|ERROR) (\S+)", done.stdout, re.M)
    return {test for kind, test in found if kind == "PASSED"}, {test for kind, test in found if kind != "PASSED"}


def main():
    if not os.access(BIN + "/llama-server", os.X_OK) or not os.path.isdir(TESTS):
        print("skip upstream: no llama-server, or none of its tests, in the build")
        return 0
    path = python()
    if not path:
        print("skip upstream: pip cannot fetch pytest, requests, ...")
        return 0
    with open(OUT + "/server_presets.py", "w") as file:
        file.write(PLUGIN)
    (f16, not_f16), (f32, not_f32) = run(path, "f16"), run(path, "f32")
    theirs, status = (f16 & f32) - CHANCE, 0
    if not theirs:
        print(f"FAIL upstream: nothing passes with llama.cpp's own caches: {OUT}/upstream.f16.log")
        return 1
    for aura in "kf32vf32", "k8v8":
        ours, _ = run(path, aura)
        missing = theirs - ours - (LATE if aura == "k8v8" else set())
        for name in sorted(missing):
            print(f"FAIL upstream {name}: it passes with f16 and f32: {OUT}/upstream.{aura}.log")
            status = 1
        if not missing:
            print(f"ok upstream {aura}: {len(theirs & ours)} of the {len(theirs)} of llama-server's tests that pass with f16 and f32;"
                  f" {len(not_f16 | not_f32)} do not pass with these, as they are about another model")
    return status


sys.exit(main())
