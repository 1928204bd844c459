#!/usr/bin/env python3
"""programs.py BIN MODEL OUT [NAME ...]: llama.cpp's own programs with caches of aura's give what they should. CACHE is the kind (aura4)."""
import os
import re
import socket
import subprocess
import sys
import time

BIN, MODEL, OUT = (os.path.abspath(path) for path in sys.argv[1:4])
CACHE = os.environ.get("CACHE", "aura4")
ASK = ["-p", "The capital of France is", "-n", "32", "-c", "1024", "--temp", "0"]


class Missing(Exception):
    pass


def run(program, *options, aura=None):
    """What a program prints, of a run that ends well."""
    if not os.access(f"{BIN}/{program}", os.X_OK):
        raise Missing(program)
    environment = {k: v for k, v in os.environ.items() if k != "LLAMA_AURA"}
    environment["OMP_WAIT_POLICY"] = "passive"
    kind = ["-ctk", CACHE, "-ctv", CACHE]
    if aura is not None:
        environment["LLAMA_AURA"], kind = aura, []
    done = subprocess.run([f"{BIN}/{program}", "-m", MODEL, "-t", "2", "-lv", "4", *options, *kind], env=environment, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=900, text=True, errors="replace")
    with open(f"{OUT}/program.{program}.log", "w") as file:
        file.write(done.stdout)
    demand(done.returncode == 0, f"{program} ends with {done.returncode}: {done.stdout.strip().splitlines()[-1:]}")
    return done.stdout


def demand(true, what):
    if not true:
        raise RuntimeError(what)


def number(said, name):
    found = re.search(name + r"\s*=\s*([0-9.]+)", said)
    demand(found, f"it does not say {name}")
    return float(found.group(1))


def is_aura(said):
    demand("make: aura" in said, "the cache is not aura's")


def passkey():
    """A number within pages of other text is found. The second time positions are divided (seq_div) and keys turned on the way."""
    for more in [], ["--grp-attn-n", "2"]:
        said = run("llama-passkey", "--junk", "20", "--pos", "8", "--keep", "32", *more)
        is_aura(said)
        key = str(int(number(said, "passkey")))
        demand(said.count(key) > 1, f"the key, {key}, is not found {more}")
    return f"{key} found, also with groups of 2"


def lookahead():
    """Many branches of a text at once; what it takes of them is what the model says without."""
    said = run("llama-lookahead", *ASK)
    is_aura(said)
    demand("Paris" in said, "it does not know Paris")
    return f"{int(number(said, 'n_accept'))} of {int(number(said, 'n_predict'))} tokens were guessed"


def draft(program, *options):
    """A draft by the same model is nearly always right."""
    said = run(program, "-md", MODEL, *ASK, *options)
    is_aura(said)
    demand("Paris" in said, "it does not know Paris")
    accepted = number(said, r"\baccept ")
    demand(accepted > 60, f"only {accepted} % of the drafts are right")
    return f"{accepted:.0f} % of {int(number(said, 'n_drafted'))} drafted tokens accepted"


def speculative():
    return draft("llama-speculative")


def speculative_simple():
    return draft("llama-speculative-simple", "--spec-type", "draft-simple")


def batched_bench():
    """Many sequences at once."""
    said = run("llama-batched-bench", "-c", "2048", "-npp", "64", "-ntg", "8", "-npl", "1,4")
    is_aura(said)
    rows = [[float(x) for x in row.split("|")[1:-1]] for row in said.splitlines() if re.match(r"\|\s+\d+ \|", row)]
    demand([row[2] for row in rows] == [1, 4], f"{len(rows)} rows")
    demand(all(row[7] > 0 for row in rows), "a speed that is none")
    return ", ".join(f"{row[2]:.0f} sequences {row[7]:.1f} tokens/s" for row in rows)


def kinds():
    """Keys and values of different kinds, kept here whatever is elsewhere, and a name that is none."""
    said = run("llama-completion", *ASK[:2], "-n", "8", "-no-cnv", "-nkvo", aura="k5v3")
    is_aura(said)
    demand("Paris" in said, "it does not know Paris")
    said = run("llama-completion", "-p", "A", "-n", "1", "-no-cnv", aura="k9v9")
    demand("make: aura" not in said and "f16 instead" in said, "a format that there is not is not refused in the log")
    return "k5v3; k9v9 is said to be none"


def device():
    """Weights on another backend: llama.cpp's server for other machines, here on this one, which says that it can compute anything. The
    cache is f16 then, and the log says why; -nkvo keeps it here, and attention is aura's."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    if not os.access(BIN + "/ggml-rpc-server", os.X_OK):
        raise Missing("ggml-rpc-server")
    with open(OUT + "/program.rpc.log", "w") as log:
        server = subprocess.Popen([BIN + "/ggml-rpc-server", "-H", "127.0.0.1", "-p", str(port), "-t", "2"], stdout=log, stderr=log)
    ask = [*ASK[:2], "-n", "8", "-no-cnv", "--temp", "0", "--rpc", f"127.0.0.1:{port}", "-ngl", "99"]
    try:
        for _ in range(100):
            with socket.socket() as s:
                if s.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        said = run("llama-completion", *ask)
        demand("make: aura" not in said and "its layers are on a device; -nkvo keeps keys and values here; f16 instead" in said,
               "a cache on a device is not said to be f16")
        demand("Paris" in said, "it does not know Paris with f16")
        said = run("llama-completion", *ask, "-nkvo")
        is_aura(said)
        demand(re.search(r"RPC\S* model buffer size", said), "no weights are on the device")
        demand("Paris" in said, "it does not know Paris")
    finally:
        server.terminate()
        server.wait()
    return "f16 on a device, which the log says; aura with -nkvo"


def main():
    status = 0
    proofs = [passkey, lookahead, speculative, speculative_simple, batched_bench, kinds, device]
    for proof in [globals()[name] for name in sys.argv[4:]] or proofs:
        try:
            print(f"ok programs {proof.__name__}: {proof()}", flush=True)
        except Missing as program:
            print(f"skip programs {proof.__name__}: {program} is not built", flush=True)
        except (RuntimeError, subprocess.TimeoutExpired) as why:
            print(f"FAIL programs {proof.__name__}: {why}", flush=True)
            status = 1
    return status


sys.exit(main())
