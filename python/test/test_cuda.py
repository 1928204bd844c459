"""Caches on a GPU. With AURA_CUDA_LIBRARY at the emulated device, arrays of numpy are its memory, and everything but torch's tensors and
streams is tested without a GPU; on a GPU the same tests run with tensors of torch. Expected numbers: oracle.py, or a cache of the CPU."""
import gc
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

import aura
from aura import cuda
from aura._lib import emulated, no_cuda
from oracle import attention, near
from run import Skip
from test_cache import Packed, refused

RNG = np.random.default_rng(5)
CLOSE = 2e-5  # plain f32 against double, by products of bf16


def numbers(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def up(x, dtype="float32"):
    """An array on the device."""
    if emulated:
        return np.asarray(x, dtype)
    import torch
    return torch.from_numpy(np.ascontiguousarray(x)).cuda().to(getattr(torch, dtype))


def down(x):
    return np.asarray(x, np.float32) if emulated else x.float().cpu().numpy()


def need():
    if no_cuda:
        raise Skip(f"no CUDA in this package: {no_cuda}")
    if not cuda.available():
        raise Skip("there is no GPU")


def filled(count=100, q_heads=4, kv_heads=2, dim=64, format="kf32vf32", **options):
    need()
    cache = aura.Cache(q_heads, kv_heads, dim, format, device="cuda", **options)
    seq, k, v = cache.sequence(), numbers(count, kv_heads, dim), numbers(count, kv_heads, dim)
    if count:
        seq.append(up(k), up(v))
    return cache, seq, k, v


def test_without():
    """A package without the library works, and says why there is no GPU."""
    code = ("import aura, aura.cuda\nassert not aura.cuda.available()\n"
            "try:\n    aura.Cache(4, 2, 64, device='cuda')\nexcept aura.Error as e:\n    assert e.status == aura.Status.UNSUPPORTED, e\n"
            "    print(e)\naura.Cache(4, 2, 64).sequence()\n")
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "AURA_CUDA_LIBRARY": ""}, capture_output=True, text=True)
    assert done.returncode == 0 and "no caches on a GPU" in done.stdout, done.stdout + done.stderr
    done = subprocess.run([sys.executable, "-c", "import aura"], env={**os.environ, "AURA_CUDA_LIBRARY": "/nowhere.so"}, capture_output=True,
                          text=True)
    assert done.returncode != 0 and "AURA_CUDA_LIBRARY" in done.stderr, done.stderr


def test_attention():
    cache, seq, k, v = filled()
    q = numbers(3, 4, 64)
    out, lse = seq.attend(up(q), return_lse=True)
    want = attention(q, k, v)
    near(down(out), want[0], CLOSE, "out")
    near(down(lse), want[1], CLOSE, "lse")
    assert len(seq) == 100 and cache.sequences() == [seq.id] and cache.bytes > 100 * 2 * 64 * 8 and "cuda:0" in repr(cache)
    many = numbers(40, 4, 64)
    near(down(seq.attend(up(many))), attention(many, k, v)[0], 2e-3, "40 queries")


def test_like_the_cpu():
    """The same bytes as on the CPU, saved, loaded and copied."""
    cache, seq, k, v = filled(300, format="k4v4")
    twin = aura.Cache(4, 2, 64, "k4v4")
    one = twin.sequence()
    one.append(k, v)
    assert seq.to_bytes() == one.to_bytes(), "a sequence"
    assert cache.to_bytes() == twin.to_bytes(), "a cache"
    q = numbers(1, 4, 64)
    near(down(seq.attend(up(q))), one.attend(q), 1e-5, "k4v4")
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "seq")
        seq.save(path)
        again, on_cpu = cache.load_sequence(path), twin.load_sequence(path)
        assert len(again) == 300 == len(on_cpu) and again.to_bytes() == on_cpu.to_bytes()
        cache.save(path, [seq])
        other, (back,) = aura.Cache.load(path, device="cuda")
        near(down(back.attend(up(q))), down(seq.attend(up(q))), 1e-6, "loaded")
        back.append(up(k[:1]), up(v[:1]))
        assert len(back) == 301 and other.q_heads == 4
    again = cache.load_sequence(seq.to_bytes())
    again.append(up(k[:40]), up(v[:40]))
    assert len(again) == 340 and len(seq) == 300


def test_from_a_cache_that_learns():
    """What a cache of the CPU has stored is read on a GPU, though that does not learn and must know q_heads."""
    need()
    k, q = numbers(700, 2, 64), numbers(1, 4, 64)
    triangle = np.stack([np.eye(64)[np.tril_indices(64)]] * 2)
    for options in (dict(flags=aura.Flags.LEARN), dict(k_metric=triangle), dict(v_metric=triangle, v_balance=np.full((2, 64), 2))):
        twin = aura.Cache(0, 2, 64, "k4v4", **options)
        one = twin.sequence()
        one.append(k[:600], k[:600])
        one.attend(numbers(512, 4, 64))
        one.append(k[600:], k[600:])
        refused(aura.Status.UNSUPPORTED, lambda: aura.Cache.load(twin.to_bytes(), device="cuda"), "q_heads")
        cache, (seq,) = aura.Cache.load(twin.to_bytes(), device="cuda", q_heads=4)
        near(down(seq.attend(up(q))), one.attend(q), 1e-5, str(list(options)))
        assert all((down(a) == b).all() for a, b in zip(seq.decode(), one.decode()))


def test_remove():
    """Tokens in the middle go, as on the CPU; a fork keeps them, and a cache that is full grows for it."""
    for format, options in (("k4v4", {}), ("kf32vf32", {}), ("k4v4", dict(tokens=512, seqs=1)), ("k4v4", dict(tokens=512, seqs=8)),
                            ("k4v4", dict(budget_bytes=1 << 22))):
        cache, seq, k, v = filled(400, format=format, **options)
        twin = aura.Cache(4, 2, 64, format).sequence()
        twin.append(k, v)
        branch = seq.fork() if not options else None
        for one in (seq, twin):
            one.remove(50, 150)
        more = numbers(40, 2, 64)
        for one, put in ((seq, up), (twin, lambda x: x)):
            one.append(put(more), put(more))
        assert len(seq) == 290 and seq.to_bytes() == twin.to_bytes(), f"{format} {options}"
        q = numbers(1, 4, 64)
        near(down(seq.attend(up(q))), twin.attend(q), 1e-5, f"{format} {options}")
        refused(aura.Status.BAD_ARGUMENT, lambda: seq.remove(280, 11))
        assert len(seq) == 290 and (branch is None or len(branch) == 400)
        gc.collect()
        assert cache.sequences() == sorted(s.id for s in (seq, branch) if s is not None)


def test_options():
    cache, seq, k, v = filled(70)
    q, mask, seen = numbers(5, 4, 64), numbers(5, 20), RNG.random((5, 70)) < 0.5
    for given in (dict(scale=0.3), dict(softcap=2.0), dict(window=9), dict(sinks=np.array([0.5, -1, 2, 0])), dict(causal=False),
                  dict(alibi=np.array([-0.1, -0.2, -0.3, -0.4])), dict(mask=mask), dict(until=[70, 60, 50, 40, 1]),
                  dict(since=[0, 5, 60, 66, 3], until=[1, 70, 61, 66, 40]), dict(since=[0, 10, 20, 30, 69])):
        near(down(seq.attend(up(q), **given)), attention(q, k, v, **given)[0], CLOSE, str(list(given)))
    near(down(seq.attend(up(q), mask=seen)), attention(q, k, v, mask=np.where(seen, 0, -np.inf))[0], CLOSE, "mask of bool")
    two = [seq, seq.fork()]
    got = cache.attend(two, up(np.stack([q, q])), until=[[70, 60, 50, 40, 1], [9, 9, 9, 9, 9]])
    near(down(got)[1], attention(q, k, v, until=[9] * 5)[0], CLOSE, "until of a batch")


def test_views():
    """Strided views are read where they are."""
    cache, seq, k, v = filled(50)
    q = numbers(6, 4, 64)
    whole = down(seq.attend(up(q)))
    heads_first, wide, twice = up(q.transpose(1, 0, 2).copy()), up(np.concatenate([q, q], 2)), up(np.repeat(q, 2, 0))
    turned = heads_first.transpose(1, 0, 2) if emulated else heads_first.transpose(0, 1)
    for name, view in (("heads first", turned), ("of wider rows", wide[:, :, :64]), ("every second", twice[::2])):
        near(down(seq.attend(view)), whole, 1e-6, name)
    one = up(numbers(1, 4, 128))
    near(down(seq.attend(one[:, :, 64:])), attention(down(one)[:, :, 64:], k, v)[0], CLOSE, "one query of wider rows")
    other, rows = cache.sequence(), up(np.stack([k, v], 1))
    other.append(rows[:, 0], rows[:, 1])
    assert other.to_bytes() == seq.to_bytes(), "keys and values in turns"
    out = up(np.zeros((6, 4, 128)))
    seq.attend(up(q), out[:, :, 64:])
    near(down(out)[:, :, 64:], whole, 1e-6, "out")
    assert not down(out)[:, :, :64].any()
    near(down(seq.attend(Packed(up(q)))) if emulated else whole, whole, 1e-6, "DLPack")
    half = seq.attend(up(q, "float16"))
    assert str(half.dtype).endswith("float16")
    near(down(half), whole, 4e-3, "float16")


def test_batches():
    need()
    cache = aura.Cache(4, 2, 64, "kf32vf32", device="cuda", seqs=3)
    seqs = [cache.sequence() for _ in range(3)]
    k, v, q = numbers(3, 9, 2, 64), numbers(3, 9, 2, 64), numbers(3, 9, 4, 64)
    out = down(cache.step(seqs, up(k), up(v), up(q), starts=[0, 3, 9]))
    assert [seq.tokens for seq in seqs] == [9, 6, 0], "what the host knows"
    for i, first in enumerate((0, 3)):
        near(out[i, first:], attention(q[i, first:], k[i, first:], v[i, first:])[0], CLOSE, f"row {i}")
        assert not out[i, :first].any(), "padding sees nothing"
    assert [len(seq) for seq in seqs] == [9, 6, 0]
    cache.append(seqs[:2], up(k[:2, :2]), up(v[:2, :2]))
    got = cache.attend([seqs[1], seqs[0]], up(q[:2, :2]))
    near(down(got)[1], attention(q[1, :2], np.concatenate([k[0], k[0, :2]]), np.concatenate([v[0], v[0, :2]]))[0], CLOSE, "another order")
    cache.append([seqs[0], seqs[2]], [up(k[0]), up(k[1, :4])], [up(v[0]), up(v[1, :4])])
    a, b = cache.attend([seqs[0], seqs[2]], [up(q[0, :1]), up(q[1, :4])])
    near(down(b), attention(q[1, :4], k[1, :4], v[1, :4])[0], CLOSE, "a list")
    assert len(seqs[0]) == 20 and tuple(a.shape) == (1, 4, 64)


def test_fork_and_truncate():
    cache, seq, k, v = filled(300, format="k4v4")
    twin = aura.Cache(4, 2, 64, "k4v4")
    one = twin.sequence()
    one.append(k, v)
    branch, copy = seq.fork(270), one.fork(270)
    more = numbers(2, 50, 2, 64)
    for a, b in ((branch, copy), (seq, one)):
        a.append(up(more[0]), up(more[1]))
        b.append(more[0], more[1])
        assert a.to_bytes() == b.to_bytes()
        a.truncate(len(a) - 10)
        b.truncate(len(b) - 10)
        a.append(up(more[1]), up(more[0]))
        b.append(more[1], more[0])
        assert a.to_bytes() == b.to_bytes(), "after a cut"
    seq.truncate(100)  # into a page that the other has too
    one.truncate(100)
    seq.append(up(more[0]), up(more[1]))
    one.append(more[0], more[1])
    assert seq.to_bytes() == one.to_bytes() and branch.to_bytes() == copy.to_bytes(), "a cut into shared pages"
    del branch
    gc.collect()
    assert len(cache.sequences()) == 1
    alone = filled(40)[1]
    alone.truncate(30)
    assert len(alone) == 30 == alone.tokens
    refused(aura.Status.BAD_ARGUMENT, lambda: alone.truncate(31), "31")


def test_select():
    """As beams do: chosen, chosen twice, not chosen."""
    cache, one, k, v = filled(40, seqs=4)
    seqs = [one, one.fork(30), one.fork(20)]
    made = cache.select(seqs, [2, 0, 2, 2])
    assert [len(seq) for seq in made] == [20, 40, 20, 20] and len(cache.sequences()) == 4 and made[0] is seqs[2]
    for i, seq in enumerate(made):
        seq.append(up(k[i : i + 1]), up(v[i : i + 1]))
    q = numbers(1, 4, 64)
    for i, (n, seq) in enumerate(zip((20, 40, 20, 20), made)):
        near(down(seq.attend(up(q))), attention(q, np.concatenate([k[:n], k[i : i + 1]]), np.concatenate([v[:n], v[i : i + 1]]))[0], CLOSE, f"{i}")
    refused(aura.Status.BAD_ARGUMENT, lambda: len(seqs[1]), "sequence")
    refused(aura.Status.BAD_ARGUMENT, lambda: cache.select(made, [4]), "4")
    del seqs, one
    made = cache.select(made, [3, 1, 0, 2])
    assert [len(seq) for seq in made] == [21, 41, 21, 21] and len(cache.sequences()) == 4


def test_grows():
    """Memory is taken as tokens come, and sequences stay what they are; with a budget it is refused."""
    cache, seq, k, v = filled(200, format="k4v4", tokens=256, seqs=2)
    before, branch = cache.bytes, seq.fork()
    more = numbers(2, 900, 2, 64)
    seq.append(up(more[0]), up(more[1]))
    third = branch.fork()
    twin = aura.Cache(4, 2, 64, "k4v4")
    one = twin.sequence()
    one.append(k, v)
    assert branch.to_bytes() == one.to_bytes() == third.to_bytes()
    one.append(more[0], more[1])
    assert seq.to_bytes() == one.to_bytes() and cache.bytes > before and len(seq) == 1100
    small, other, *_ = filled(100, format="k4v4", budget_bytes=cache.bytes // 2, seqs=2)
    refused(aura.Status.TOO_LARGE, lambda: other.append(up(np.tile(more[0], (30, 1, 1))), up(np.tile(more[1], (30, 1, 1)))), "at most")
    assert len(other) == 100


def test_window():
    cache, seq, k, v = filled(0, format="k4v4", window=32, max_queries=64, tokens=1024)
    twin = aura.Cache(4, 2, 64, "k4v4", window=32, max_queries=64)
    one = twin.sequence()
    pages = cache._get_info()
    for _ in range(20):
        k, v, q = numbers(64, 2, 64), numbers(64, 2, 64), numbers(64, 4, 64)
        seq.append(up(k), up(v))
        one.append(k, v)
        near(down(seq.attend(up(q[:1]))), one.attend(q[:1]), 1e-5, "window")
    assert seq.first == one.first > 0 and cache._get_info().pages == pages.pages, "memory is used again"
    refused(aura.Status.BAD_ARGUMENT, lambda: seq.truncate(100), "gone")


def test_decode():
    cache, seq, k, v = filled(80, format="k8v8")
    twin = aura.Cache(4, 2, 64, "k8v8")
    one = twin.sequence()
    one.append(k, v)
    want = one.decode(3, 60)
    for dtype, tolerance in (("float32", 0), ("float16", 1e-3)):
        for got, x in zip(seq.decode(3, 60, dtype), want):
            assert str(got.dtype).endswith(dtype)
            near(down(got), x, tolerance, dtype)
    room = up(np.zeros((2, 60, 128)), "float16")
    part = room[:, :, :64].transpose(1, 0, 2) if emulated else room[:, :, :64].transpose(0, 1)
    seq.decode(3, 60, out=(None, part))
    near(down(part), want[1], 1e-3, "values alone, heads first")
    assert not down(room)[:, :, 64:].any()


def test_what_the_device_finds():
    cache, seq, k, v = filled(20)
    bad = k[:2].copy()
    bad[1, 1, 7] = np.nan
    seq.append(up(bad), up(v[:2]))
    refused(aura.Status.BAD_VALUE, seq.check, "NaN")
    seq.check()
    assert len(seq) == 20
    seq.append(up(k[:2]), up(v[:2]))
    assert len(seq) == 22


def test_refused():
    cache, seq, k, v = filled(20)
    refused(aura.Status.BAD_ARGUMENT, lambda: seq.append(up(k[:, :1]), up(v)), "shape")
    refused(aura.Status.BAD_ARGUMENT, lambda: seq.append(up(k), up(v[:3])), "tokens")
    refused(aura.Status.UNSUPPORTED, lambda: aura.Cache(0, 2, 64, device="cuda"), "q_heads")
    refused(aura.Status.BAD_ARGUMENT, lambda: aura.Cache(4, 2, 64, device="tpu"), "tpu")
    if not emulated:
        refused(aura.Status.UNSUPPORTED, lambda: seq.append(k, v), "numpy")
        refused(aura.Status.DEVICE, lambda: aura.Cache(4, 2, 64, device="cuda:77"), "77")
    assert len(seq) == 20


def test_lifetimes():
    for _ in range(3):
        cache, seq, k, v = filled(30)
        branch = seq.fork()
        ring = [cache, seq, branch]
        ring.append(ring)
        seq.attend(up(numbers(1, 4, 64)))
        del cache, seq, branch, ring
        gc.collect()
    cache, seq, k, v = filled(30, seqs=2)
    for _ in range(10):  # ended sequences make room for others
        branch = seq.fork()
        branch.append(up(k), up(v))
        assert len(branch) == 60
        del branch
    assert cache._seqs == 2
