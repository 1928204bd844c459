#!/usr/bin/env python3
"""server.py BIN MODEL OUT [PROOF ...]: llama-server with caches of aura's, through its HTTP interface. PROOF: turns restart damaged nan
soak soak_text; all of them when none is named. SEED and REQUESTS (200) are the soaks'. Logs are in OUT."""
import http.client
import json
import os
import random
import re
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time

BIN, MODEL, OUT = (os.path.abspath(path) for path in sys.argv[1:4])
SLOTS = 4
ROOM = 1024  # tokens of a slot
GROWTH = 4 << 20  # bytes that a process may be larger by after the second half of the requests, when all slots are full
TEXT = ("It was a bright cold day in the harbour, and the clocks of the town were striking. A man with a grey coat walked slowly along "
        "the quay, counting the boats, and wrote each name into a small book. ")


class Server:
    """A llama-server of its own. As a context manager it ends with the block."""

    def __init__(self, name, cache, model=MODEL, options=()):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.log = f"{OUT}/server.{name}.log"
        self.slots = f"{OUT}/slots"
        os.makedirs(self.slots, exist_ok=True)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("LLAMA_A")}
        environment["OMP_WAIT_POLICY"] = "passive"
        # what is freed goes back, so that the size of the process is what is in use
        environment.update({"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"})
        environment.update({"LLAMA_AURA": cache} if cache.startswith("k") else {})
        kind = [] if cache.startswith("k") else ["-ctk", cache, "-ctv", cache]
        with open(self.log, "w") as log:
            self.process = subprocess.Popen([BIN + "/llama-server", "-m", model, "--port", str(self.port), "-np", str(SLOTS), "-c", str(SLOTS * ROOM),
                                             "-t", "2", "-tb", "2", "--slot-save-path", self.slots, "--cache-ram", "0", "--ctx-checkpoints", "2", "--no-warmup",
                                             "-lv", "4", *kind, *options], env=environment, stdout=log, stderr=log)

    def __enter__(self):
        for _ in range(600):
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended with {self.process.returncode}: {self.log}")
            try:
                if self.ask("GET", "/health")[0] == 200:
                    return self
            except OSError:
                pass
            time.sleep(0.2)
        raise RuntimeError("the server does not answer")

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def ask(self, how, path, body=None):
        """The status and what was said."""
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        try:
            link.request(how, path, json.dumps(body) if body is not None else None, {"Content-Type": "application/json"})
            answer = link.getresponse()
            return answer.status, json.loads(answer.read() or b"{}")
        finally:
            link.close()

    def tokens(self, text):
        return self.ask("POST", "/tokenize", {"content": text})[1]["tokens"]

    def complete(self, slot, tokens, n):
        """The most likely tokens, how likely the best and the second were, and the timings."""
        status, said = self.ask("POST", "/completion", {"prompt": tokens, "id_slot": slot, "n_predict": n, "temperature": 0, "n_probs": 2,
                                                        "return_tokens": True, "cache_prompt": True, "ignore_eos": True})
        if status != 200:
            raise RuntimeError(f"a request was answered with {status}: {said}")
        return said

    def cancel(self, slot, tokens, n):
        """A request whose caller goes after n tokens."""
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        link.request("POST", "/completion", json.dumps({"prompt": tokens, "id_slot": slot, "n_predict": 200, "temperature": 0, "stream": True,
                                                        "ignore_eos": True}), {"Content-Type": "application/json"})
        answer = link.getresponse()
        while n and answer.readline():
            n -= 1
        link.close()

    def slot(self, number, action, name):
        return self.ask("POST", f"/slots/{number}?action={action}", {"filename": name})

    def memory(self):
        with open(f"/proc/{self.process.pid}/status") as file:
            return int(re.search(r"VmRSS:\s*(\d+)", file.read()).group(1)) * 1024

    def said(self, words):
        with open(self.log, errors="replace") as file:
            return words in file.read()

    def is_aura(self):
        demand(self.said("make: aura"), f"there is no cache of aura's: {self.log}")


def demand(true, what):
    if not true:
        raise RuntimeError(what)


def together(work):
    """work(slot) for all slots at once. The first that failed is raised."""
    bad = []

    def one(slot):
        try:
            work(slot)
        except Exception as why:
            bad.append(why)
    threads = [threading.Thread(target=one, args=(slot,)) for slot in range(SLOTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if bad:
        raise bad[0]


# ---- proofs: each returns its figures, or raises --------------------------------------------------------------------------


def turns():
    """Four people talk at once. A turn computes what is new of it; also where all slots are in one buffer."""
    figures = []
    for options in (), ("--kv-unified",):
        with Server("turns", "aura4", options=options) as server:
            computed, asked = [0] * SLOTS, [0] * SLOTS

            def talk(slot):
                history = server.tokens(f"Number {slot}. " + TEXT * 3)
                for turn in range(4):
                    new = server.tokens(f" And then, for the time number {turn}, somebody said:")
                    said = server.complete(slot, history + new, 12)
                    if turn:
                        demand(said["timings"]["prompt_n"] <= len(new) + 1, f"slot {slot}, turn {turn}: {said['timings']['prompt_n']} tokens"
                               f" were computed of which {len(new)} are new")
                    computed[slot] += said["timings"]["prompt_n"]
                    asked[slot] += len(history + new)
                    history += new + said["tokens"]
            together(talk)
            server.is_aura()
            figures.append(f"{sum(computed)} of {sum(asked)} tokens of prompts computed")
    return f"{figures[0]}; in one buffer {figures[1]}"


def restart():
    """A slot is saved, the server ends, another starts and restores it into another slot: the prompt is not computed again, and what
    follows is what the first server said."""
    with Server("restart.1", "aura4") as server:
        prompt = server.tokens(TEXT * 12)
        more = server.tokens(" What was in the book?")
        reply = server.complete(0, prompt, 16)["tokens"]
        status, saved = server.slot(0, "save", "restart.bin")
        demand(status == 200, f"save: {status} {saved}")
        first = server.complete(0, prompt + reply + more, 24)
        server.is_aura()
    with Server("restart.2", "aura4") as server:
        status, restored = server.slot(2, "restore", "restart.bin")
        demand(status == 200 and restored["n_restored"] == saved["n_saved"], f"restore: {status} {restored}")
        second = server.complete(2, prompt + reply + more, 24)
    computed = second["timings"]["prompt_n"]
    demand(computed <= len(more) + 1, f"{computed} tokens were computed again; {len(more)} are new")
    demand(second["tokens"] == first["tokens"], "the restored slot goes on differently")
    return f"{saved['n_saved']} tokens in {saved['n_written']} bytes restored; of {len(prompt + reply + more)} tokens {computed} computed"


def damaged():
    """Files that are not whole are refused, with a message. Another slot has lost nothing, and the server lives on."""
    with Server("damaged", "aura4") as server:
        prompt = server.tokens(TEXT * 2)
        server.complete(0, prompt, 4)
        demand(server.slot(0, "save", "whole.bin")[0] == 200, "save")
        with open(server.slots + "/whole.bin", "rb") as file:
            whole = file.read()
        flip = lambda at: whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1:]
        size = len(whole)
        files = {"flipped at a half": flip(size // 2), "flipped at 9 of 10": flip(size * 9 // 10), "the last byte flipped": flip(size - 1),
                 "half of it": whole[:size // 2], "a byte less": whole[:-1], "empty": b"", "noise": random.Random(1).randbytes(size)}
        before = server.complete(0, prompt, 8)["tokens"]
        for what, text in files.items():
            with open(server.slots + "/damaged.bin", "wb") as file:
                file.write(text)
            status, said = server.slot(1, "restore", "damaged.bin")
            demand(status >= 400 and said.get("error", {}).get("message"), f"{what}: {status} {said}")
            after = server.complete(0, prompt, 8)
            demand(after["tokens"] == before and after["timings"]["prompt_n"] <= 1, f"{what}: slot 0 says something else now")
            new = server.complete(1, prompt, 8)
            demand(new["timings"]["prompt_n"] == len(prompt), f"{what}: slot 1 has kept something")
        demand(server.slot(1, "restore", "whole.bin")[0] == 200, "the whole file is refused, too")
        server.is_aura()
    return f"{len(files)} files refused"


def with_nan(path, layer):
    """A copy of the model of which a weight of a layer's keys is no number: where a tensor is, from a GGUF file."""
    with open(MODEL, "rb") as file:
        data = file.read()
    at = 8

    def number(form):
        nonlocal at
        value, = struct.unpack_from("<" + form, data, at)
        at += struct.calcsize(form)
        return value

    def text():
        nonlocal at
        size = number("Q")
        at += size
        return data[at - size:at].decode()

    def value(kind):
        nonlocal at
        if kind == 8:
            return text()
        if kind == 9:
            kind, n = number("I"), number("Q")
            return [value(kind) for _ in range(n)]
        return number("BbHhIif?  Qqd"[kind])
    tensors, pairs = number("Q"), number("Q")
    facts = {}
    for _ in range(pairs):
        key = text()
        facts[key] = value(number("I"))
    found = {}
    for _ in range(tensors):
        name = text()
        for _ in range(number("I")):
            number("Q")
        found[name] = (number("I"), number("Q"))
    align = facts.get("general.alignment", 32)
    kind, offset = found[f"blk.{layer}.attn_k.weight"]
    demand(kind in (1, 2, 3, 6, 7, 8), f"no test for weights of type {kind}")  # those that begin with a half
    begin = (at + align - 1) // align * align + offset
    with open(path, "wb") as file:
        file.write(data[:begin] + b"\x00\x7e" + data[begin + 2:])


def nan():
    """Keys that are no numbers do not end the process. They are stored as zeros, which the log says, and the model goes on."""
    path = OUT + "/nan.gguf"
    with_nan(path, 5)
    try:
        with Server("nan", "aura4", model=path) as server:
            prompt = server.tokens(TEXT)
            for slot in range(2):
                said = server.complete(slot, prompt, 8)
                demand(len(said["tokens"]) == 8, "tokens are missing")
            demand(server.slot(0, "save", "nan.bin")[0] == 200 and server.slot(3, "restore", "nan.bin")[0] == 200, "save and restore")
            demand(server.ask("GET", "/health")[0] == 200, "the server is gone")
            server.is_aura()
            demand(server.said("not finite"), "the log says nothing of it")
    finally:
        os.remove(path)
    return f"after a prompt of {len(prompt)} tokens it says: {said['content']!r}"


# ---- the soak --------------------------------------------------------------------------------------------------------------


def plan(server, slot, n, random, words, room):
    """Requests of a slot, made up while a server of llama.cpp's own cache answers them: the same go to the other server later."""
    prefixes = [words(room // 8 * (i + 1)) for i in range(3)]
    history, kept, steps = [], None, []
    while len(steps) < n:
        what = random.choices(["go on", "begin", "cancel", "save", "restore"], [45, 20, 15, 10, 10])[0]
        new = words(random.randint(2, 30))
        if what == "save" and history:
            kept = f"soak.{slot}.bin", list(history)
            steps.append(("save", kept[0]))
            continue
        if what == "restore" and kept:
            steps.append(("restore", kept[0]))
            history = list(kept[1])
            continue
        if what == "begin" or len(history) + len(new) > room - 60:
            history = list(random.choice(prefixes))
        if what == "cancel":
            steps.append(("cancel", history + new, random.randint(1, 12)))
            server.cancel(slot, *steps[-1][1:])
            continue
        said = server.complete(slot, history + new, random.randint(4, 20))
        steps.append(("ask", history + new, said))
        history += new + said["tokens"]
    return steps


def replay(server, slot, steps, results):
    """The same requests. Of each answer: whether it is equal, the margin of the first token that differs, tokens, computed, asked."""
    for step in steps:
        if step[0] == "cancel":
            server.cancel(slot, *step[1:])
        elif step[0] != "ask":
            status, said = server.slot(slot, *step)
            demand(status == 200, f"{step}: {status} {said}")
        else:
            theirs = step[2]
            ours = server.complete(slot, step[1], len(theirs["tokens"]))
            first = next((i for i, pair in enumerate(zip(theirs["tokens"], ours["tokens"])) if pair[0] != pair[1]), None)
            likely = [p["logprob"] for p in theirs["completion_probabilities"][first or 0]["top_logprobs"]]
            margin = 0 if first is None else likely[0] - likely[1]
            results.append((first is None, margin, len(theirs["tokens"]), ours["timings"]["prompt_n"], len(step[1])))


def when_full(server, room):
    """The bytes of the process when every slot is full. Pages are taken as they come: how many there are just then says nothing."""
    together(lambda slot: server.complete(slot, [3 + (7 * slot + i) % 100 for i in range(room - 8)], 2))
    return server.memory()


def soak_of(model, room, near, text):
    """Requests at random in four slots at once: the same tokens as with llama.cpp's own f32 cache but for those that `near` explains,
    and memory that does not grow."""
    seed, total = int(os.environ.get("SEED", "1")), int(os.environ.get("REQUESTS", "200"))
    steps, results = [None] * SLOTS, []
    with Server("soak.f32", "f32", model, ("-fa", "off")) as server:
        def record(slot):
            dice = random.Random(seed * SLOTS + slot)
            some = lambda n: dice.choices(range(3, 120), k=n)
            words = (lambda n: server.tokens(" " + " ".join(dice.choices(TEXT.split(), k=n)))[:n]) if text else some
            steps[slot] = plan(server, slot, total // SLOTS, dice, words, room)
        together(record)
        demand(not server.said("make: aura"), "the reference has aura's cache")
    with Server("soak.aura", "kf32vf32", model) as server:
        first = when_full(server, room)
        together(lambda slot: replay(server, slot, steps[slot][:total // SLOTS // 2], results))
        half = when_full(server, room)
        together(lambda slot: replay(server, slot, steps[slot][total // SLOTS // 2:], results))
        growth = when_full(server, room) - half
        server.is_aura()
    kinds = ", ".join(f"{sum(step[0] == kind for of in steps for step in of)} {kind}" for kind in ("ask", "cancel", "save", "restore"))
    equal, margin = sum(r[0] for r in results), max(r[1] for r in results)
    said = (f"{kinds}: {equal} of {len(results)} answers of {sum(r[2] for r in results)} tokens equal, else the best {margin:.4f} nats ahead or"
            f" less; {sum(r[3] for r in results)} of {sum(r[4] for r in results)} tokens of prompts computed; full slots"
            f" {first / 2**20:.0f} MiB, after a half {(half - first) / 2**20:+.1f}, after the other {growth / 2**20:+.1f}")
    demand(margin < near and equal > len(results) * 0.8 and growth < GROWTH, f"{os.path.basename(model)}: {said}")
    return said


def soak():
    """With a model whose weights are f32, so that nothing but the cache rounds: equal, but where two tokens are as likely. Two more
    models have a window, one of them sinks."""
    tiny = os.environ.get("TINY", os.path.join(BIN, "../../tiny"))
    demand(os.path.exists(tiny + "/llama-dense.gguf"), f"no small models in {tiny}")
    return "; ".join(f"{name} {soak_of(f'{tiny}/{name}.gguf', 250, 1e-3, False)}" for name in ("llama-dense", "gemma3-dense", "gpt-oss-moe"))


def soak_text():
    """With a model that speaks. Its activations are rounded to 8 bits at every weight, which makes a difference of a last bit large:
    llama.cpp's own f32 caches with and without flash attention differ where the best token is 0.3 nats ahead."""
    return soak_of(MODEL, ROOM, 0.5, True)


def main():
    if not os.access(BIN + "/llama-server", os.X_OK):
        print("skip server: llama-server is not built")
        return 0
    status = 0
    for proof in [globals()[name] for name in sys.argv[4:]] or [turns, restart, damaged, nan, soak, soak_text]:
        begin = time.time()
        try:
            print(f"ok server {proof.__name__}: {proof()}, {time.time() - begin:.0f} s", flush=True)
        except (RuntimeError, OSError, KeyError, http.client.HTTPException) as why:
            print(f"FAIL server {proof.__name__}: {type(why).__name__}: {why}", flush=True)
            status = 1
    shutil.rmtree(OUT + "/slots", ignore_errors=True)
    return status


sys.exit(main())
