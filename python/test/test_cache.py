"""The package with numpy alone. Expected numbers come from oracle.py, or are equal bit by bit."""
import ctypes
import gc
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np

import aura
from oracle import attention, near

TIGHT = 3e-6  # plain f32 against double
RNG = np.random.default_rng(1)


def numbers(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def filled(tokens=100, q_heads=4, kv_heads=2, dim=64, format="kf32vf32", **options):
    cache = aura.Cache(q_heads, kv_heads, dim, format, threads=2, **options)
    seq, k, v = cache.sequence(), numbers(tokens, kv_heads, dim), numbers(tokens, kv_heads, dim)
    seq.append(k, v)
    return cache, seq, k, v


def refused(status, call, *words):
    try:
        call()
    except aura.Error as error:
        assert error.status == status, f"{error.status!r}: {error}"
        for word in words:
            assert word in str(error), f"no {word!r} in: {error}"
        return
    raise AssertionError("no error")


def test_attention():
    cache, seq, k, v = filled()
    q = numbers(3, 4, 64)
    out, lse = seq.attend(q, return_lse=True)
    want = attention(q, k, v)
    near(out, want[0], TIGHT, "out")
    near(lse, want[1], TIGHT, "lse")
    assert len(seq) == 100 and cache.sequences() == [seq.id] and cache.bytes > 100 * 2 * 64 * 8


def test_any_dim():
    for dim, v_dim in ((32, 0), (65, 20), (128, 64)):
        cache = aura.Cache(4, 2, dim, "kf32vf32", v_dim=v_dim)
        seq, k, v, q = cache.sequence(), numbers(40, 2, dim), numbers(40, 2, v_dim or dim), numbers(2, 4, dim)
        seq.append(k, v)
        near(seq.attend(q), attention(q, k, v)[0], TIGHT, f"dims {dim}, {v_dim}")


def test_options():
    cache, seq, k, v = filled(70)
    q, mask = numbers(5, 4, 64), numbers(5, 20)
    seen = RNG.random((5, 70)) < 0.5
    for given in (dict(scale=0.3), dict(softcap=2.0), dict(window=9), dict(sinks=np.array([0.5, -1, 2, 0])), dict(causal=False),
                  dict(alibi=np.array([-0.1, -0.2, -0.3, -0.4])), dict(mask=mask), dict(mask=numbers(4, 5, 20)),
                  dict(since=[0, 5, 60, 66, 3], until=[1, 70, 61, 66, 40]),
                  dict(until=[70, 60, 50, 40, 1]), dict(since=[0, 10, 20, 30, 69])):
        near(seq.attend(q, **given), attention(q, k, v, **given)[0], TIGHT, str(list(given)))
    near(seq.attend(q, mask=seen), attention(q, k, v, mask=np.where(seen, 0, -np.inf))[0], TIGHT, "mask of bool")
    refused(aura.Status.BAD_ARGUMENT, lambda: seq.attend(q, mask=numbers(3, 5, 20)), "[4, 5, keys]")


def test_dtypes_and_strides():
    cache, seq, k, v = filled(50, format="kf32vf32")
    q = numbers(6, 4, 64)
    whole = seq.attend(q)
    views = {
        "heads first": np.ascontiguousarray(q.transpose(1, 0, 2)).transpose(1, 0, 2),
        "every second": np.repeat(q, 2, axis=0)[::2],
        "backwards": np.ascontiguousarray(q[::-1])[::-1],
        "part of a wider row": np.concatenate([q, q], axis=2)[:, :, :64],
        "heads backwards": np.ascontiguousarray(q[:, ::-1])[:, ::-1],
    }
    for name, view in views.items():
        assert not view.flags.c_contiguous
        assert (seq.attend(view) == whole).all(), name
    one = np.ascontiguousarray(q.transpose(1, 0, 2)).transpose(1, 0, 2)[5:]  # one token, heads far apart
    assert (seq.attend(one) == whole[5:]).all(), "one token"
    for x in (k, v):
        for name, (a, b) in {"k": (x[:, ::-1], v), "v": (k, x[::-1])}.items():
            s, t = cache.sequence(), cache.sequence()
            s.append(a, b)
            t.append(np.ascontiguousarray(a), np.ascontiguousarray(b))
            assert s.to_bytes() == t.to_bytes(), name
    same = np.broadcast_to(q[:1], q.shape)
    assert (seq.attend(same) == seq.attend(np.ascontiguousarray(same))).all(), "broadcast"
    half = q.astype(np.float16)
    got = seq.attend(half)
    assert got.dtype == np.float16
    near(got, attention(half, k, v)[0], 1e-3, "float16")
    out = np.zeros((6, 8, 64), np.float32)[:, ::2]
    assert seq.attend(q, out=out) is out and (out == whole).all()


class Packed:
    """An array of somebody's, known by DLPack alone."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_dlpack():
    cache, seq, k, v = filled(40)
    other = cache.sequence()
    other.append(Packed(k), Packed(np.ascontiguousarray(v.transpose(1, 0, 2)).transpose(1, 0, 2)))
    assert other.to_bytes() == seq.to_bytes()
    q = numbers(2, 4, 64)
    assert (seq.attend(Packed(q)) == seq.attend(q)).all()
    held = sys.getrefcount(q)
    for _ in range(100):
        seq.attend(Packed(q))
    assert sys.getrefcount(q) == held, "a capsule was never freed"


def test_dlpack_of_another_version():
    class Versioned(Packed):
        def __dlpack__(self, **options):
            make = ctypes.pythonapi.PyCapsule_New
            make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
            return make(1, b"dltensor_versioned", None)

    cache, seq, k, v = filled(40)
    refused(aura.Status.UNSUPPORTED, lambda: seq.append(Versioned(k), v), "k[0]", "version")


def test_nothing():
    """No tokens, whatever strides numpy gives to that."""
    cache, seq, k, v = filled(40)
    for none in (k[:0], np.broadcast_to(k[:1], (2, 2, 64))[:0], k.transpose(2, 1, 0)[:, :, :0].transpose(2, 1, 0)):
        seq.append(none, none)
        assert len(seq) == 40
    assert seq.attend(np.empty((0, 4, 64), np.float32)).shape == (0, 4, 64)
    assert cache.attend([seq, seq], np.empty((2, 0, 4, 64), np.float32)).shape == (2, 0, 4, 64)
    assert [x.shape for x in seq.decode(7, 0)] == [(0, 2, 64)] * 2 and [x.shape for x in cache.sequence().decode()] == [(0, 2, 64)] * 2


def test_batches():
    cache = aura.Cache(4, 2, 64, "kf32vf32")
    seqs = [cache.sequence() for _ in range(3)]
    k, v, q = numbers(3, 20, 2, 64), numbers(3, 20, 2, 64), numbers(3, 2, 4, 64)
    cache.append(seqs, k, v)
    out = cache.attend(seqs, q)
    for i, seq in enumerate(seqs):
        near(out[i], attention(q[i], k[i], v[i])[0], TIGHT, "batch")
    uneven = [numbers(n, 2, 64) for n in (1, 30, 5)]
    cache.append(seqs, uneven, uneven)
    assert [len(seq) for seq in seqs] == [21, 50, 25]
    outs = cache.attend(seqs, [numbers(n, 4, 64) for n in (1, 3, 2)])
    assert [len(o) for o in outs] == [1, 3, 2]
    heads_first = np.ascontiguousarray(k.transpose(0, 2, 1, 3))  # as transformers has them
    again = [cache.sequence() for _ in range(3)]
    cache.append(again, heads_first.transpose(0, 2, 1, 3), v)
    assert (cache.attend(again, q) == out).all()


def test_step():
    cache = aura.Cache(4, 2, 64, "kf32vf32")
    seqs = [cache.sequence() for _ in range(3)]
    k, v, q = numbers(3, 2, 9, 64).transpose(0, 2, 1, 3), numbers(3, 9, 2, 64), numbers(3, 9, 4, 64)
    starts = [0, 4, 9]
    out = cache.step(seqs, k, v, q, starts=starts)
    assert [len(seq) for seq in seqs] == [9, 5, 0]
    for i, start in enumerate(starts[:2]):
        near(out[i, start:], attention(q[i, start:], k[i, start:], v[i, start:])[0], TIGHT, "step")
        assert (out[i, :start] == 0).all()
    assert (out[2] == 0).all()
    again = cache.step(seqs[:2], k[:2, :1], v[:2, :1], q[:2, :1], softcap=3.0)
    both = [np.concatenate([x[1, 4:], x[1, :1]]) for x in (k, v)]
    near(again[1], attention(q[1, :1], *both, softcap=3.0)[0], TIGHT, "next step")
    refused(aura.Status.BAD_ARGUMENT, lambda: cache.step(seqs, k, v, q, starts=[0, 10, 0]))
    refused(aura.Status.BAD_ARGUMENT, lambda: cache.step(seqs, k, v[:, :8], q), "8")
    assert [len(seq) for seq in seqs] == [10, 6, 0]


def test_errors_change_nothing():
    cache, seq, k, v = filled(40, format="k4v4")
    before, status = seq.to_bytes(), aura.Status
    spoilt = k.copy()
    spoilt[7, 1, 3] = np.nan
    refused(status.BAD_VALUE, lambda: seq.append(spoilt, v), "7")
    refused(status.BAD_ARGUMENT, lambda: seq.append(k[:, :1], v), "k[0]", "[40, 1, 64]")
    refused(status.BAD_ARGUMENT, lambda: seq.append(k, v[:3]), "40 tokens")
    refused(status.BAD_ARGUMENT, lambda: seq.append(np.repeat(k, 2, axis=2)[:, :, ::2], v), "side by side")
    refused(status.UNSUPPORTED, lambda: seq.append(k.astype(np.float64), v), "float64")
    refused(status.BAD_ARGUMENT, lambda: seq.append([1.0], v), "list")
    refused(status.BAD_ARGUMENT, lambda: seq.truncate(41))
    refused(status.BAD_ARGUMENT, lambda: seq.attend(numbers(41, 4, 64)))
    refused(status.BAD_ARGUMENT, lambda: aura.Cache(4, 2, 64, "k9v9"), "k9v9")
    refused(status.BAD_ARGUMENT, lambda: aura.Cache(-4, 2, 64), "q_heads")
    refused(status.UNSUPPORTED, lambda: aura.Cache(4, 2, 513))
    refused(status.BAD_ARGUMENT, lambda: aura.Cache(4, 2, 64).attend([seq], [numbers(1, 4, 64)]), "another cache")
    refused(status.BAD_ARGUMENT, lambda: seq.attend(numbers(1, 4, 64), out=np.broadcast_to(np.zeros(1, np.float32), (1, 4, 64))))
    frozen = np.zeros((1, 4, 64), np.float32)
    frozen.flags.writeable = False
    refused(status.BAD_ARGUMENT, lambda: seq.attend(numbers(1, 4, 64), out=frozen), "written")
    refused(status.OUT_OF_PAGES, lambda: aura.Cache(4, 2, 64, budget_bytes=1000))
    refused(status.BAD_ARGUMENT, lambda: pickle.dumps(cache), "save()")
    assert seq.to_bytes() == before
    error = aura.Error(status.IO, "text")
    assert pickle.loads(pickle.dumps(error)).status == status.IO and isinstance(error, RuntimeError)


def test_fork_truncate_remove():
    cache, seq, k, v = filled(90)
    q = numbers(1, 4, 64)
    branch = seq.fork(60)
    near(branch.attend(q), attention(q, k[:60], v[:60])[0], TIGHT, "fork")
    branch.append(k[:5], v[:5])
    assert len(seq) == 90 and len(branch) == 65
    seq.truncate(30)
    near(seq.attend(q), attention(q, k[:30], v[:30])[0], TIGHT, "truncate")
    seq.remove(10, 10)
    near(seq.attend(q), attention(q, np.delete(k[:30], np.s_[10:20], 0), np.delete(v[:30], np.s_[10:20], 0))[0], TIGHT, "remove")
    before = cache.info()["seqs"]
    del branch
    assert cache.info()["seqs"] == before - 1, "a sequence that nobody holds is still there"
    got = seq.decode(5, 4)
    assert (got[0] == k[5:9]).all() and (got[1] == v[5:9]).all()


def test_window_gives_memory_back():
    cache = aura.Cache(2, 1, 64, "k4v4", window=256, max_queries=64)
    plain = aura.Cache(2, 1, 64, "k4v4")
    for c in (cache, plain):
        c.kept = c.sequence()
        for _ in range(64):
            c.kept.append(numbers(64, 1, 64), numbers(64, 1, 64))
    assert cache.bytes * 3 < plain.bytes and cache.kept.first > 3000


def test_files():
    cache, seq, k, v = filled(300, format="k4v4")
    second = seq.fork(100)
    q = numbers(2, 4, 64)
    want = [s.attend(q) for s in (seq, second)]
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "cache.aura")
        cache.save(path, note=b"mine")
        loaded, seqs = aura.Cache.load(path)
        assert path.read_bytes() != cache.to_bytes() and b"mine" in path.read_bytes()  # a note is part of a file
        seq.save(path)
        assert path.read_bytes() == seq.to_bytes()
        alone = loaded.load_sequence(path)
        path.write_bytes(seq.to_bytes()[:-9])
        refused(aura.Status.BAD_FILE, lambda: loaded.load_sequence(path))
        refused(aura.Status.IO, lambda: aura.Cache.load(pathlib.Path(folder, "none")), "none")
    for a, b in zip([*seqs, alone], [*want, want[0]]):
        assert (a.attend(q) == b).all()
    from_memory, seqs = aura.Cache.load(cache.to_bytes())
    assert [len(s) for s in seqs] == [300, 100] and (seqs[1].attend(q) == want[1]).all()


def test_files_of_other_sequences():
    """A sequence of another cache has an id that means another one here."""
    cache, seq, *_ = filled(30)
    other, foreign, *_ = filled(50)
    assert foreign.id == seq.id
    with tempfile.TemporaryDirectory() as folder:
        for call in (lambda: cache.to_bytes([foreign]), lambda: cache.save(pathlib.Path(folder, "x"), [seq, foreign])):
            refused(aura.Status.BAD_ARGUMENT, call, "another cache")
        assert not os.listdir(folder)
    assert cache.to_bytes([seq]) == cache.to_bytes(iter([seq])) == cache.to_bytes()


def test_bytes_of_any_kind():
    cache, seq, *_ = filled(30, format="k4v4")
    for kind in (bytes, bytearray, memoryview):
        assert len(aura.Cache.load(kind(cache.to_bytes()))[1][0]) == 30
        assert len(cache.load_sequence(kind(seq.to_bytes()))) == 30
        refused(aura.Status.BAD_FILE, lambda: aura.Cache.load(kind(b"")))


def test_batches_of_a_model():
    layers = [dict(q_heads=4, kv_heads=2, dim=64, format="kf32vf32")] * 2
    model, other = aura.ModelCache(layers), aura.ModelCache(layers)
    seqs, k, v, q = [model.sequence(), model.sequence()], numbers(2, 20, 2, 64), numbers(2, 20, 2, 64), numbers(2, 3, 4, 64)
    for i, layer in enumerate(model.layers):
        layer.append([seq[i] for seq in seqs], k, v)
        out = layer.attend([seq[i] for seq in seqs], q)
        for row in (0, 1):
            near(out[row], attention(q[row], k[row], v[row])[0], TIGHT, f"layer {i}")
        out = layer.step([seq[i] for seq in seqs], k, v, numbers(2, 20, 4, 64))
        assert [len(seq[i]) for seq in seqs] == [40, 40]
        for wrong in (seqs[0][1 - i], other.sequence()[i]):
            refused(aura.Status.BAD_ARGUMENT, lambda: layer.append([wrong], k[:1], v[:1]), "another cache")


def test_models():
    layers = [dict(q_heads=4, kv_heads=2, dim=64, format=f) for f in ("k8v8", "k4v4", "kf32vf32")]
    profile = aura.Profile(3)
    profile[1] = np.full((2, 64), 2, np.float32)
    assert profile[0] is None and (profile[1] == 2).all() and len(profile) == 3
    model = aura.ModelCache(layers, profile=profile)
    seq, k, v = model.sequence(), numbers(40, 2, 64), numbers(40, 2, 64)
    for layer in seq:
        layer.append(k, v)
    q = numbers(1, 4, 64)
    near(seq[2].attend(q), attention(q, k, v)[0], TIGHT, "layer")
    branch = seq.fork()
    branch.truncate(20)
    assert (len(seq), len(branch), len(model.sequences())) == (40, 20, 2)
    refused(aura.Status.BAD_ARGUMENT, lambda: model.layers[0].sequence(), "ModelCache")
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "model.aura")
        model.save(path)
        again, seqs = aura.ModelCache.load(path)
        assert (seqs[0][1].attend(q) == seq[1].attend(q)).all() and len(seqs[1]) == 20
        profile.save(path)
        assert (aura.Profile.load(path)[1] == 2).all()
    del branch
    gc.collect()
    assert len(model.sequences()) == 1


def test_calibrate_and_experiments():
    stretch = np.ones(64, np.float32)
    stretch[5] = 30
    k, v, q = numbers(600, 2, 64) * stretch, numbers(600, 2, 64), numbers(300, 4, 64)
    balance = aura.calibrate([(k[:300], q), (k[300:], q)], 4, 2, 64)
    assert balance.shape == (2, 64) and (balance.argmin(axis=1) == 5).all() and np.isfinite(balance).all()
    plain, _ = aura.quantize_dequantize(k, v, "k4v4")
    better, values = aura.quantize_dequantize(k, v, "k4v4", balance=balance)
    error = [np.abs((x - k) / stretch)[4:].mean() for x in (plain, better)]
    assert error[1] < error[0] * 0.8, error
    assert 0.05 < np.abs(values - v)[4:].mean() < 0.12 and (np.abs(values - v).max(axis=(1, 2))[4:] > 0.05).all()  # the last token too
    exact = aura.quantize_dequantize(k, v, "kf32vf32")
    assert (exact[0] == k).all() and (exact[1] == v).all()
    bits = aura.formats()
    assert len(bits) == 144 and bits["kf32vf32"] == 32 and 4 < bits["k4v4"] < 4.3 < bits["k8v8"] < 8.3


def test_profiles():
    """All that a profile can say of a layer reaches a cache, through a file too."""
    turn, tall = np.linalg.qr(numbers(64, 64))[0], np.tril_indices(64)
    looks = (turn * np.where(np.arange(64) < 4, 9, 0.01)) @ turn.T  # queries look in four directions
    metric, twos = np.stack([looks[tall]] * 2).astype(np.float32), np.full((2, 64), 2, np.float32)
    profile = aura.Profile(3)
    profile.put(0, format="kt3v8", balance=twos, v_balance=twos / 4, k_metric=metric, v_metric=metric)
    profile.put(1, format="k2vt4")
    with tempfile.TemporaryDirectory() as folder:
        profile.save(path := pathlib.Path(folder, "profile"))
        profile = aura.Profile.load(path)
    got = profile.options(0)
    assert got.pop("format") == "kt3v8" and profile.options(1) == dict(format="k2vt4") and profile.options(2) == {}
    assert all((got[name] == x).all() for name, x in dict(balance=twos, v_balance=twos / 4, k_metric=metric, v_metric=metric).items())
    refused(aura.Status.BAD_ARGUMENT, lambda: profile.put(2, balance=twos, k_metric=metric[:1]), "k_metric")
    refused(aura.Status.BAD_ARGUMENT, lambda: profile.put(2, k_metric=metric[:, 1:]), "k_metric")
    k, v = numbers(400, 2, 64), numbers(400, 2, 64)
    for name, side in (("k_metric", 0), ("v_metric", 1)):
        plain, better = (aura.quantize_dequantize(k, v, "kt3vt3", **x)[side] for x in ({}, {name: metric}))
        cost = [np.einsum("thi,ij,thj->", x, looks, x) for x in (plain - (k, v)[side], better - (k, v)[side])]
        assert cost[1] < 0.5 * cost[0], (name, cost)
    assert (aura.quantize_dequantize(k, v, "k4v4", v_balance=np.linspace(0.5, 2, 128).reshape(2, 64))[1] != aura.quantize_dequantize(k, v, "k4v4")[1]).any()
    layers = [dict(q_heads=4, kv_heads=2, dim=64, **x) for x in (dict(), dict(), dict())]
    formats = [layer.format for layer in aura.ModelCache(layers, profile=profile).layers]
    assert formats == ["kt3v8", "k2vt4", "k4v4"], formats
    error = [np.square(aura.quantize_dequantize(k, v, x)[0] - k).mean() for x in ("k3v3", "kt3vt3")]
    assert error[1] < 0.85 * error[0], error


def test_threads_and_the_gil():
    cache = aura.Cache(8, 1, 128, "kf32vf32", threads=1)
    seq = cache.sequence()
    seq.append(numbers(4096, 1, 128), numbers(4096, 1, 128))
    q, state = numbers(256, 8, 128), []

    def work():
        state.append("begun")
        seq.attend(q)
        state.append("done")

    thread, turns = threading.Thread(target=work), 0
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    thread.start()
    while "done" not in state:
        turns += "begun" in state
    sys.setswitchinterval(interval)
    thread.join()
    assert turns > 10000, f"this thread had only {turns} turns while another one was attending"
    seqs, want = [seq.fork() for _ in range(4)], seq.attend(q[:2])
    got = [None] * 4

    def one(i):
        got[i] = all((seqs[i].attend(q[:2]) == want).all() for _ in range(5))

    threads = [threading.Thread(target=one, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(got)


IN_ANY_ORDER = """
import gc, itertools, numpy as np, aura
class Knot: pass
x = np.ones((300, 1, 64), np.float32)
for order in itertools.permutations(range(4)):
    for cyclic in (False, True):
        context = aura.Context(threads=2)
        cache = aura.Cache(1, 1, 64, threads=context)
        model = aura.ModelCache([dict(q_heads=1, kv_heads=1, dim=64)], threads=context)
        seq, other = cache.sequence(), model.sequence()
        seq.append(x, x)
        other[0].append(x, x)
        things = [context, cache, [model, other], [seq, seq.fork()]]
        if cyclic:
            knot = Knot()
            knot.held = [things[i] for i in order] + [knot]
            for thing in (context, cache, model):
                thing.knot = knot
            seq.knot = knot
            del knot
        kept = dict(enumerate(things))
        del context, cache, model, seq, other, things
        for i in order:
            del kept[i]
            gc.collect()
print("alive")
"""


def test_lifetimes_in_any_order():
    done = subprocess.run([sys.executable, "-c", IN_ANY_ORDER], capture_output=True, text=True, env={**os.environ, "MALLOC_PERTURB_": "165"})
    assert done.returncode == 0 and done.stdout == "alive\n" and not done.stderr, f"{done.returncode} {done.stderr[-500:]}"


def test_freed_handles_are_refused():
    cache, seq, k, v = filled(3)
    cache._handle.close()
    refused(aura.Status.BAD_ARGUMENT, lambda: seq.append(k, v), "freed")


FORKED = """
import os, sys, warnings, numpy as np, aura
warnings.simplefilter("ignore")
x = np.ones((300, 1, 64), np.float32)
cache = aura.Cache(1, 1, 64, threads=2)
seq = cache.sequence()
seq.append(x, x)
child = os.fork()
if child == 0:
    try:
        seq.attend(x[:1])
        os._exit(3)
    except aura.Error as error:
        if "fork()" not in str(error) or error.status != aura.Status.BAD_ARGUMENT:
            os._exit(4)
    own = aura.Cache(1, 1, 64, threads=2).sequence()
    own.append(x, x)
    if own.attend(x[:1]).shape != (1, 1, 64):
        os._exit(5)
    del seq, cache
    sys.exit(0)  # with finalisers
status = os.waitpid(child, 0)[1]
seq.append(x, x)
print(os.waitstatus_to_exitcode(status), len(seq))
"""


def test_fork_of_the_process():
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=60)
    assert done.stdout == "0 600\n", f"{done.stdout} {done.stderr[-500:]}"


def test_own_cost():
    """What Python adds to a call: an attend over one token, all told."""
    cache = aura.Cache(1, 1, 64, "kf32vf32", threads=1)
    seq, x = cache.sequence(), numbers(1, 1, 64)
    seq.append(x, x)
    best = 1e9
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(50):
            seq.attend(x)
        best = min(best, (time.perf_counter() - start) / 50)
    assert best < 100e-6, f"{best * 1e6:.0f} us"
