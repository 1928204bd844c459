"""Tensors of torch without copies, and the operators."""
import os
import shutil

import torch

import aura
import aura.torch
from aura._arrays import look
from oracle import attention, near
from run import Skip
from test_cache import Packed, refused

torch.manual_seed(1)
NEAR = {torch.float32: 3e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def filled(tokens=60):
    cache = aura.Cache(4, 2, 64, "kf32vf32")
    seq, k, v = cache.sequence(), torch.randn(tokens, 2, 64), torch.randn(tokens, 2, 64)
    seq.append(k, v)
    return cache, seq, k, v


def test_dtypes_without_copies():
    cache, seq, k, v = filled()
    for dtype, tolerance in NEAR.items():
        q = torch.randn(4, 3, 64).to(dtype).transpose(0, 1)  # heads first
        assert look(q, "q").pointer == q.data_ptr() and look(q, "q").strides == q.stride()
        out = seq.attend(q)
        assert out.dtype == dtype and isinstance(out, torch.Tensor)
        near(out.float(), attention(q.float(), k, v)[0], tolerance, str(dtype))
        other, kept = cache.sequence(), [x.to(dtype) for x in (k, v)]
        other.append(*kept)
        got = other.decode(0, 60, out=tuple(torch.empty(60, 2, 64, dtype=dtype) for _ in range(2)))
        assert all((a == b).all() for a, b in zip(got, kept)), dtype
        if dtype == torch.bfloat16:
            near(seq.attend(Packed(q)), attention(q.float(), k, v)[0], 3e-6, "bfloat16 by DLPack, out in float32")
    spread = k[:1].expand(60, 2, 64)
    one, two = cache.sequence(), cache.sequence()
    one.append(spread, v)
    two.append(spread.contiguous(), v)
    assert one.to_bytes() == two.to_bytes(), "expanded"


def test_refused():
    cache, seq, k, v = filled()
    refused(aura.Status.UNSUPPORTED, lambda: seq.append(k.double(), v), "float64")
    refused(aura.Status.UNSUPPORTED, lambda: seq.append(k.to("meta"), v), "meta")
    grad = torch.randn(1, 4, 64, requires_grad=True)
    assert not seq.attend(grad).requires_grad


def test_batches_and_experiments():
    cache = aura.Cache(4, 2, 64, "kf32vf32")
    seqs = [cache.sequence() for _ in range(2)]
    k, v, q = (torch.randn(2, h, 9, 64).transpose(1, 2) for h in (2, 2, 4))
    out = cache.step(seqs, k, v, q, starts=[0, 3])
    near(out[1, 3:], attention(q[1, 3:], k[1, 3:], v[1, 3:])[0], 3e-6, "step")
    a, b = aura.quantize_dequantize(k[0].bfloat16(), v[0].bfloat16(), "k8v8")
    assert a.dtype == torch.bfloat16 and float((a.float() - k[0]).abs().max()) < 0.1


def test_operators():
    cache = aura.Cache(4, 2, 64, "kf32vf32")
    seqs = [cache.sequence() for _ in range(2)]
    batch = aura.torch.Batch(cache, seqs)
    k, v, q = torch.randn(2, 5, 2, 64), torch.randn(2, 5, 2, 64), torch.randn(2, 1, 4, 64)
    torch.ops.aura.append(batch.state, k, v)
    want = cache.attend(seqs, q)
    assert (torch.ops.aura.attend(batch.state, q, 64) == want).all()
    torch.library.opcheck(torch.ops.aura.attend, (batch.state, q, 64), dict(softcap=2.0), test_utils=("test_schema", "test_faketensor"))

    def model(state, k, v, q):
        torch.ops.aura.append(state, k * 2, v + 1)
        out = torch.ops.aura.attend(state, q * 0.5, 64, sinks=torch.zeros(4))
        return torch.relu(out).sum(1)

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")  # fullgraph: a break in the graph is an error
    twin = aura.torch.Batch(cache, [seq.fork() for seq in seqs])
    for _ in range(3):
        assert torch.allclose(compiled(batch.state, k[:, :1], v[:, :1], q), model(twin.state, k[:, :1], v[:, :1], q), atol=1e-6)
    assert len(seqs[0]) == 8 and int(batch.state[1]) == 8
    state = batch.state
    del batch
    refused(aura.Status.BAD_ARGUMENT, lambda: torch.ops.aura.attend(state, q, 64), "gone")


def test_compiled_in_order():
    """What the default backend makes of calls that depend on each other by the state alone."""
    if not any(map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++"))):
        raise Skip("torch.compile needs a C++ compiler")
    import torch._inductor.config as config

    def twice(state, k, v, q):
        torch.ops.aura.append(state, k * 2, v + 1)
        a = torch.ops.aura.attend(state, q * 0.5, 64)
        torch.ops.aura.append(state, k * 3, v - 1)
        b = torch.ops.aura.attend(state, q + a, 64, scale=0.2)
        return torch.relu(a).sum(1) + b.mean(1)

    with config.patch(force_disable_caches=True):
        torch._dynamo.reset()
        cache = aura.Cache(4, 2, 64, "kf32vf32")
        seqs = [[cache.sequence() for _ in range(2)] for _ in range(2)]
        ours, twin = (aura.torch.Batch(cache, some) for some in seqs)
        compiled = torch.compile(twice, fullgraph=True)
        for tokens in (1, 3):
            given = torch.randn(2, tokens, 2, 64), torch.randn(2, tokens, 2, 64), torch.randn(2, tokens, 4, 64)
            off = float((compiled(ours.state, *given) - twice(twin.state, *given)).abs().max())
            assert off < 1e-5, f"off by {off}"
        for one, other in zip(*seqs):
            assert all((x == y).all() for x, y in zip(one.decode(), other.decode())), "stored in another order"
        assert ours.state[1] == twin.state[1] == 8


def test_states_of_batches_that_are_gone():
    """A Batch that is made later, at the same place in memory, is another one."""
    cache = aura.Cache(4, 2, 64, "kf32vf32")
    states = [aura.torch.Batch(cache, [cache.sequence()]).state for _ in range(50)]
    held = [aura.torch.Batch(cache, [cache.sequence()]) for _ in range(50)]
    for state in states:
        refused(aura.Status.BAD_ARGUMENT, lambda: torch.ops.aura.attend(state, torch.randn(1, 1, 4, 64), 64), "gone")
    del held
