#!/usr/bin/env python3
"""binding.py BIN MODEL OUT: integrations/llama.cpp/example.py, which is llama-cpp-python with type_k=, on the library in BIN. What it needs
of Python goes to an environment beside the source. Skipped where that cannot be fetched."""
import glob
import os
import subprocess
import sys

BIN, MODEL, OUT = (os.path.abspath(path) for path in sys.argv[1:4])
PEERS = os.environ.get("PEERS_DIR", os.path.dirname(os.path.dirname(os.path.dirname(BIN))))
EXAMPLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../example.py")
NEEDS = ["numpy", "diskcache", "jinja2", "typing_extensions"]


def python():
    """The Python that has what is needed, or None."""
    place = PEERS + "/aura/python"
    path = place + "/bin/python3"
    able = [path, "-c", "import numpy, diskcache, jinja2, typing_extensions"]
    if not os.path.exists(path) or subprocess.run(able, capture_output=True).returncode:
        subprocess.run([sys.executable, "-m", "venv", place], capture_output=True)
        subprocess.run([path, "-m", "pip", "install", "--quiet", *NEEDS], capture_output=True)
    return path if os.path.exists(path) and subprocess.run(able, capture_output=True).returncode == 0 else None


def main():
    source = sorted(glob.glob(PEERS + "/llama_cpp_python-*/llama_cpp/__init__.py"))
    if not source or not os.path.exists(BIN + "/libllama.so"):
        print(f"skip binding: no {'libllama.so in ' + BIN if source else 'llama-cpp-python in ' + PEERS}")
        return 0
    program = python()
    if not program:
        print("skip binding: no network for " + ", ".join(NEEDS))
        return 0
    environment = dict(os.environ, LLAMA_CPP_LIB_PATH=BIN, PYTHONPATH=os.path.dirname(os.path.dirname(source[-1])), OMP_WAIT_POLICY="passive")
    environment.pop("LLAMA_AURA", None)
    done = subprocess.run([program, EXAMPLE, MODEL], env=environment, capture_output=True, text=True, timeout=600)
    with open(OUT + "/binding.log", "w") as file:
        file.write(done.stdout + done.stderr)
    answers = [text.strip() for text in done.stdout.split("answer:")[1:]]
    why = (f"it ends with {done.returncode}" if done.returncode else
           "the cache is not aura's" if "make: aura" not in done.stderr else
           "there are not two answers" if len(answers) != 2 else
           f"the answers differ: {answers}" if answers[0] != answers[1] else
           f"a strange answer: {answers[0]!r}" if "Paris" not in answers[0] else
           "the restored prompt was computed again" if "4 prefix-match hit, remaining 1 prompt" not in done.stderr else None)
    print(f"FAIL binding: {why}: {OUT}/binding.log" if why else f"ok binding: type_k= in llama-cpp-python: {answers[0]!r} twice, once from a state")
    return why is not None


sys.exit(main())
