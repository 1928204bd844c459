"""AuraCache on a GPU, under generate(). With AURA_CUDA_LIBRARY at the emulated device, tensors of the CPU are its memory."""
import copy
import pathlib
import tempfile

import torch
import transformers

import aura
import aura.torch
import aura.transformers as ours
from aura import cuda
from aura._lib import emulated, no_cuda
from aura.transformers import AuraCache
from models import FAMILIES, model, prompts
from run import Skip
from test_cache import refused
from test_transformers import generate, plain, same

WHERE = "cpu" if emulated else "cuda"
CLOSE, MANY = 2e-5, 5e-3  # up to 16 queries; more, which are multiplied in f16


def need():
    if no_cuda:
        raise Skip(f"no CUDA in this package: {no_cuda}")
    if not cuda.available():
        raise Skip("there is no GPU")


def there(name, attention="aura", **options):
    need()
    return model(name, attention, **options).to(WHERE)


def given(*arguments):
    return {key: x.to(WHERE) for key, x in prompts(*arguments).items()}


def cache(m, format="kf32vf32", **options):
    return AuraCache(m.config, format, device="cuda", **options)


def on_cpu(got):
    return tuple(x.cpu() for x in got)


def test_families():
    """Padding on the left, windows, sinks, caps, chunks, hybrids: which way attention took."""
    for name in FAMILIES:
        if any(word in name for word in ("dim 32", "bloom", "gpt2")):
            continue  # their dims are not a GPU's
        want = plain(name)
        for attention in ("aura", "sdpa", "eager"):
            if attention == "sdpa" and ("softcap" in name or "sinks" in name):
                continue  # transformers refuses it there
            for prefill in ("exact", "codes") if attention == "aura" else ("exact",):
                m = there(name, attention)
                got = on_cpu(generate(m, cache(m, prefill=prefill), given()))
                many = prefill == "codes" or "softcap" in name or "sinks" in name or "chunks" in name
                same(got, want, f"{name} {attention} {prefill}", MANY if many else CLOSE)
                went = dict(ours.counts)
                if attention == "eager":
                    assert went["decoded"] and not went["attend"], f"{name} {attention}: {went}"
                else:
                    assert went["attend"] and not went["decoded"], f"{name} {attention}: {went}"
                    assert bool(went["masked"]) == (attention == "sdpa" or "chunks" in name), f"{name} {attention}: {went}"


def test_masks_of_windows():
    """Holes, and masks that show a query what its window would hide: attended to from the codes."""
    every, codes = (("aura", "codes"), ("aura", "exact"), ("sdpa", "exact")), (("aura", "codes"),)
    for tokens, pads, ways in ((40, (7, 0), every), (700, (650, 0), codes)):  # 700: more than a window's call takes
        whole = prompts(2, tokens, pads)
        whole["attention_mask"][1, tokens - 20 : tokens - 15] = 0
        for name in ("mistral, window", "gemma3, window", "llama4, chunks")[: None if tokens == 40 else 1]:
            want = plain(name, whole)
            for attention, prefill in ways:
                m = there(name, attention)
                got = on_cpu(generate(m, cache(m, prefill=prefill), {key: x.to(WHERE) for key, x in whole.items()}))
                same(got, want, f"{name} {attention} {prefill}, {tokens} tokens", MANY)
                assert ours.counts["masked"] and not ours.counts["decoded"], f"{name} {attention}: {ours.counts}"
    need()
    config = transformers.MistralConfig(num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, head_dim=64, sliding_window=16)
    layer = AuraCache(config, "kf32vf32", device="cuda", prefill="codes").layers[0]
    k, v = torch.randn(2, 2, 400, 64), torch.randn(2, 2, 400, 64)
    layer.update(k[:, :, :40].to(WHERE), v[:, :, :40].to(WHERE))
    layer.flush([9, 0])  # padding, which is not stored
    first = 40
    for tokens in (1, 7, 300, 52):
        part = slice(first, first + tokens)
        old, first = 15, first + tokens
        key, value = layer.update(k[:, :, part].to(WHERE), v[:, :, part].to(WHERE))
        seen = slice(first - tokens - old, first)
        q, mask = torch.randn(2, 4, tokens, 64), torch.rand(2, 1, tokens, old + tokens) < 0.3
        mask[..., 0] = True
        out = ours.attention(None, q.to(WHERE), key, value, mask.to(WHERE), scaling=0.125)[0].cpu()
        want = torch.nn.functional.scaled_dot_product_attention(q, k[:, :, seen], v[:, :, seen], mask, scale=0.125, enable_gqa=True)
        error = float((out - want.transpose(1, 2)).abs().max())
        assert error <= (MANY if tokens > 16 else CLOSE), f"{tokens} tokens: {error}"


def test_beams_and_crops():
    for name in ("llama", "mistral, window"):
        m = there(name)
        got = generate(m, cache(m), given(), num_beams=3)
        assert torch.equal(got[0].cpu(), plain(name, num_beams=3)[0]), f"{name}: beams"
        again = given(1, 60, (0,))
        again["input_ids"][0, 30:] = again["input_ids"][0, :30]
        want = plain(name, {key: x.cpu() for key, x in again.items()}, max_new_tokens=24)
        got = generate(m, cache(m), again, max_new_tokens=24, prompt_lookup_num_tokens=5)
        assert torch.equal(got[0].cpu(), want[0]), f"{name}: prompt lookup"


def test_turns_copies_and_files():
    m, whole = there("llama"), given(2, 60, (7, 0))
    want = plain("llama", prompts(2, 60, (7, 0)))
    first = cache(m)
    part = {key: x[:, :40] for key, x in whole.items()}
    m(**part, past_key_values=first)
    twin = copy.deepcopy(first)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "cache")
        first.save(path)
        third = AuraCache.load(path, m.config, device="cuda")
        assert third.layers[0].store.device == "cuda:0"
    longer = cache(m)
    m(**given(2, 45, (7, 0)), past_key_values=longer)
    longer.crop(-5)
    assert longer.get_seq_length() == 40 and [len(seq) for seq in longer.layers[1].seqs] == [33, 40], "crop"
    for one in (first, twin, third):
        got = on_cpu(generate(m, one, whole))
        same(got, want, "a prompt in two parts", MANY)
    assert twin.layers[0].seqs[0].to_bytes() == third.layers[0].seqs[0].to_bytes()
    first.reset()
    same(on_cpu(generate(m, first, whole)), want, "after reset()", CLOSE)


def alike(a, b):
    return torch.equal(*(torch.as_tensor(x).cpu() for x in (a, b)))


def test_files_travel():
    """A file of the CPU's is read on a GPU, and the reverse: the same bytes, and attention goes on."""
    for name, format in (("llama", "k4v4"), ("llama", "kf32vf32"), ("mistral, window", "k4v4")):
        m, whole = there(name), given(2, 700, (9, 0))
        part = {key: x[:, :690] for key, x in whole.items()}
        for source, target in ((dict(device="cuda"), {}), ({}, dict(device="cuda"))):
            if emulated or source:
                one = AuraCache(m.config, format, **source)
                m(**part, past_key_values=one)
            else:
                one = AuraCache(m.config, format)
                model(name)(**{key: x.cpu() for key, x in part.items()}, past_key_values=one)
            with tempfile.TemporaryDirectory() as folder:
                one.save(path := pathlib.Path(folder, "cache"))
                two = AuraCache.load(path, m.config, **target)
                two.save(path)
                three = AuraCache.load(path, m.config, **source)
            assert bool(two.layers[0].gpu) == bool(target) and two.get_seq_length() == 690, f"{name} {format}"
            for layer, other in zip(one.layers, three.layers):
                for a, b in zip(layer.seqs, other.seqs):
                    x, y = a.decode(a.first, dtype="float16"), b.decode(b.first, dtype="float16")
                    assert a.first == b.first and all(map(alike, x, y)), f"{name} {format}: there and back"
            if emulated:
                far = [m(**{**whole, "input_ids": whole["input_ids"][:, 690:]}, past_key_values=c).logits for c in (one, two)]
                error = float((far[0] - far[1]).abs().max() / far[0].abs().max())
                assert error <= (MANY if format == "k4v4" else CLOSE), f"{name} {format} {target}: {error}"


def test_profile():
    """What a profile has, caches on a GPU get."""
    m, profile = there("llama"), aura.Profile(2)
    triangle = torch.eye(64)[tuple(torch.tril_indices(64, 64))].repeat(2, 1)
    profile.put(0, format="k8v5", balance=torch.full((2, 64), 1.5), v_balance=torch.full((2, 64), 0.5), v_metric=triangle)
    one = AuraCache(m.config, device="cuda", profile=profile)
    m(**given(), past_key_values=one)
    have = [layer.store._get_info().config for layer in one.layers]
    assert [layer.store.format for layer in one.layers] == ["k8v5", "k4v4"]
    assert [(bool(c.balance), bool(c.v_balance), bool(c.k_metric), bool(c.v_metric)) for c in have] == [(1, 1, 0, 1), (0, 0, 0, 0)]
    text = torch.randint(2, 128, (90,))
    found, want = ours.calibrate(m, [text]), ours.calibrate(model("llama"), [text])
    for i in range(2):
        for name, x in want.options(i).items():
            assert torch.allclose(torch.as_tensor(found.options(i)[name]), torch.as_tensor(x), rtol=1e-2, atol=1e-3 * float(abs(x).max())), name


def test_bytes_of_long_rows():
    """A layer of 32/8 heads of 128 beside float16 or bfloat16 of as many tokens. The last page of a row is half full in the mean."""
    need()
    config = transformers.LlamaConfig(num_hidden_layers=1, num_attention_heads=32, num_key_value_heads=8, head_dim=128)
    for rows, tokens, least in ((8, 32768, 3.82), (8, 32768 + 26, 3.799), (8, 32768 + 128, 3.81), (1, 131072 + 26, 3.84)):
        layer = AuraCache(config, "k4v4", device="cuda", max_tokens=tokens).layers[0]
        few = torch.zeros(rows, 8, 1, 128, device=WHERE, dtype=torch.bfloat16)
        layer.update(few, few)
        layer.flush()
        for seq in layer.seqs:
            seq.reserve(tokens)
        smaller = rows * tokens * 8 * 128 * 4 / layer.store.bytes
        print(f"# {rows} x {tokens}: {layer.store.bytes / 1e6:.1f} MB, {smaller:.4f} x smaller")
        assert smaller >= least, f"{rows} x {tokens}: {smaller:.4f}"


def test_bytes_and_growth():
    m = there("llama")
    small, large = cache(m, "k4v4"), cache(m, "k4v4", max_tokens=8000)
    for one in (small, large):
        m(**given(1, 40, (0,)), past_key_values=one)
    assert small.bytes < large.bytes / 2
    three = cache(m, "k4v4", max_tokens=1200)
    m(**given(3, 40, (0, 0, 0)), past_key_values=three)
    before = three.bytes
    for layer in three.layers:
        layer.update(torch.randn(3, 2, 1100, 64, device=WHERE), torch.randn(3, 2, 1100, 64, device=WHERE))
        layer.flush()
    assert three.bytes == before, "max_tokens is for every row"
    before = small.bytes
    for layer in small.layers:
        layer.update(torch.randn(1, 2, 1500, 64, device=WHERE), torch.randn(1, 2, 1500, 64, device=WHERE))
    m(**given(1, 3, (0,)), past_key_values=small)
    assert small.bytes > 1.4 * before and small.get_seq_length() == 1543 == len(small.layers[1].seqs[0])


def test_offload():
    """Layers wait in the memory of the host, and attention finds them."""
    m, want = there("llama"), plain("llama")
    one = cache(m)
    with torch.no_grad():
        out = m(**given(), past_key_values=one)
        for layer in one.layers:
            layer.offload()
        assert one.bytes == 0, "given back"
        ids, mask = out.logits[:, -1:].argmax(-1), given()["attention_mask"]
        for step in range(3):
            mask = torch.nn.functional.pad(mask, (0, 1), value=1)
            one.layers[0].prefetch()
            assert one.layers[0].store._away is None
            out = m(input_ids=ids, attention_mask=mask, past_key_values=one)
            error = float((out.logits[:, -1].cpu() - want[1][step + 1]).abs().max() / want[1].abs().max())
            assert error <= CLOSE, error
            for layer in one.layers:
                layer.offload()
            ids = out.logits[:, -1:].argmax(-1)
        two = cache(m)
        out = m(**given(), past_key_values=two)
        two.batch_select_indices([1, 1])  # the second row twice: numbers 1 and 2, which are 0 and 1 when they come back
        ids, mask = out.logits[[1, 1], -1:].argmax(-1), given()["attention_mask"][[1, 1]]
        for step in range(3):
            mask = torch.nn.functional.pad(mask, (0, 1), value=1)
            out = m(input_ids=ids, attention_mask=mask, past_key_values=two)
            error = float((out.logits[:, -1].cpu() - want[1][step + 1, [1, 1]]).abs().max() / want[1].abs().max())
            assert error <= CLOSE, f"step {step}: {error}"
            for layer in two.layers:
                layer.offload()
            ids = out.logits[:, -1:].argmax(-1)
    if not emulated:
        got = generate(m, AuraCache(m.config, "kf32vf32", offloading=True), given())
        same(on_cpu(got), want, "offloading=True", CLOSE)


def test_refused():
    m = there("llama", head_dim=72)
    refused(aura.Status.UNSUPPORTED, lambda: m(**given(), past_key_values=cache(m, "k4v4", prefill="codes")), "72")
    if not emulated:
        m = model("llama")
        refused(aura.Status.UNSUPPORTED, lambda: m(**prompts(), past_key_values=cache(m)), "cpu")


def test_operators():
    need()
    store = aura.Cache(4, 2, 64, "kf32vf32", device="cuda")
    seqs = [store.sequence() for _ in range(2)]
    batch = aura.torch.Batch(store, seqs)
    k, v, q = (torch.randn(2, n, h, 64, device=WHERE) for n, h in ((5, 2), (5, 2), (1, 4)))
    torch.ops.aura.append(batch.state, k, v)
    assert torch.equal(torch.ops.aura.attend(batch.state, q, 64), store.attend(seqs, q))

    def model(state, k, v, q):
        torch.ops.aura.append(state, k * 2, v + 1)
        return torch.relu(torch.ops.aura.attend(state, q * 0.5, 64)).sum(1)

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    twin = aura.torch.Batch(store, [seq.fork() for seq in seqs])
    for _ in range(3):
        assert torch.allclose(compiled(batch.state, k[:, :1], v[:, :1], q), model(twin.state, k[:, :1], v[:, :1], q), atol=1e-5)
    assert len(seqs[0]) == 8


def test_bfloat16():
    for name in ("llama", "mistral, window"):
        m = there(name, dtype=torch.bfloat16)
        one = cache(m, "k8v8")
        out = m(**given(), past_key_values=one)
        assert out.logits.dtype == torch.bfloat16 and one.layers[0].dtype == torch.bfloat16
        ids = out.logits[:, -1:].argmax(-1)
        mask = torch.nn.functional.pad(given()["attention_mask"], (0, 1), value=1)
        got = m(input_ids=ids, attention_mask=mask, past_key_values=one).logits[:, -1].float()
        m.set_attn_implementation("eager")
        want = m(input_ids=torch.cat([given()["input_ids"], ids], 1), attention_mask=mask).logits[:, -1].float()
        assert float((got - want).abs().max() / want.abs().max()) < 4e-2, name
        keys = one.layers[0].keys
        assert keys.real().dtype == torch.bfloat16 and keys.real().device.type == WHERE
