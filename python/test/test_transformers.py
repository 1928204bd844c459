"""AuraCache under generate(): tokens and logits against DynamicCache with transformers' own "eager" attention. In kf32vf32 only the plumbing
can differ."""
import copy
import functools
import gc
import logging
import os
import pathlib
import tempfile
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers

import aura
import aura.transformers as ours
from aura import _calibrate, _layer, _lazy
from aura._layer import AuraLayer
from aura._lib import lib
from aura.transformers import AuraCache
from models import FAMILIES, model, prompts
from test_cache import refused

torch.set_grad_enabled(False)
torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
TIGHT = 5e-6


def generate(m, cache, given=None, **options):
    for name in ours.counts:
        ours.counts[name] = 0
    options = {**dict(max_new_tokens=12, do_sample=False), **options}
    out = m.generate(**(given or prompts()), past_key_values=cache, output_logits=True, return_dict_in_generate=True, **options)
    return out.sequences, None if out.logits is None else torch.stack(out.logits)


def plain(name, given=None, **options):
    m = model(name, "eager")
    return generate(m, transformers.DynamicCache(config=m.config), given, **options)


def same(got, want, what, tolerance=TIGHT):
    assert torch.equal(got[0], want[0]), f"{what}: other tokens"
    error = float((got[1] - want[1]).abs().max() / want[1].abs().max())
    assert error <= tolerance, f"{what}: logits off by {error:.1e}"


def test_families():
    """Every family, with padding on the left; which way attention took."""
    for name in FAMILIES:
        want = plain(name)
        for attention in ("aura", "sdpa", "eager"):
            if attention == "sdpa" and ("softcap" in name or "sinks" in name):
                continue  # transformers refuses it there
            for prefill in ("exact", "codes") if attention == "aura" else ("exact",):
                m = model(name, attention)
                same(generate(m, AuraCache(m.config, "kf32vf32", prefill=prefill)), want, f"{name} {attention} {prefill}")
                went = dict(ours.counts)
                if attention == "eager" or "bloom" in name:
                    assert went["decoded"] and not went["attend"], f"{name} {attention}: {went}"
                else:
                    assert went["attend"] and not went["decoded"], f"{name} {attention}: {went}"
                    assert bool(went["masked"]) == (attention == "sdpa" or "chunks" in name), f"{name} {attention}: {went}"
                    assert bool(went["exact"]) == (prefill == "exact"), f"{name} {attention}: {went}"


def test_padding_is_not_stored():
    m, given = model("llama"), prompts(3, 40, (30, 11, 0))
    cache = AuraCache(m.config, "k4v4")
    tokens, logits = generate(m, cache, given)
    assert [len(seq) for seq in cache.layers[0].seqs] == [51 - n for n in (30, 11, 0)] and cache.get_seq_length() == 51
    for prefill in ("exact", "codes"):
        layer = AuraCache(m.config, "k4v4", prefill=prefill)
        m(**given, past_key_values=layer)
        assert layer.layers[1].pads == [30, 11, 0], prefill
    for row, n in enumerate((30, 11, 0)):
        alone = dict(input_ids=given["input_ids"][row : row + 1, n:])
        want = generate(m, AuraCache(m.config, "k4v4"), alone)
        same((tokens[row : row + 1, n:], logits[:, row : row + 1]), want, f"row {row}", 2e-2)


def test_holes_in_the_mask():
    given = prompts()
    given["attention_mask"][1, 20:25] = 0
    for name in ("llama", "mistral, window"):
        got, masked = generate(model(name), AuraCache(model(name).config, "kf32vf32"), given), ours.counts["masked"]
        same(got, plain(name, given), name)
        assert masked


def test_masks_of_heads():
    """Each head its own mask, behind padding that is not stored; masks of one query and of one head are for all."""
    module, sdpa = torch.nn.Module(), torch.nn.functional.scaled_dot_product_attention
    for way, shape in (("aura", (2, 4, 10, 70)), ("sdpa", (2, 4, 10, 70)), ("sdpa", (2, 4, 1, 70)), ("sdpa", (2, 1, 1, 70))):
        cache, (k, v) = AuraCache(format="kf32vf32", prefill="codes"), torch.randn(2, 2, 2, 70, 64)
        cache.update(k[:, :, :60], v[:, :, :60], 0)
        cache.layers[0].flush([9, 0])
        q, mask = torch.randn(2, 4, 10, 64), torch.randn(shape)
        mask[torch.rand(mask.shape) < 0.5] = -torch.inf
        mask[0, ..., :9] = -torch.inf
        key, value = cache.update(k[:, :, 60:], v[:, :, 60:], 0)
        before = dict(ours.counts)
        if way == "aura":
            out = ours.attention(module, q, key, value, mask, scaling=0.125)[0].transpose(1, 2)
        else:
            out = sdpa(q, key, value, mask, scale=0.125, enable_gqa=True)
        want = sdpa(q, k, v, mask, scale=0.125, enable_gqa=True)
        assert torch.allclose(out, want, atol=1e-5), f"{way}: {float((out - want).abs().max())}"
        assert ours.counts["decoded"] == before["decoded"] and ours.counts["masked"] > before["masked"], way


def test_metrics_of_values():
    """What the product behind attention makes of a head's output, whichever way round its weights lie: GPT-2 and GPT-BigCode call
    it by one name."""
    below = torch.tril_indices(16, 16)
    for product in (torch.nn.Linear(64, 64), transformers.pytorch_utils.Conv1D(64, 64)):
        module = torch.nn.Module()
        module.c_proj = product
        w = (product(torch.eye(64)) - product(torch.zeros(1, 64))).double().reshape(2, 2, 16, 64)
        want = torch.einsum("kgdo,kgeo->kde", w, w)[:, below[0], below[1]]
        got = _calibrate._metric_of_values(module, 4, 2, 16)
        assert torch.allclose(got.double(), want, rtol=1e-3, atol=1e-6), f"{type(product).__name__}: {float((got - want).abs().max())}"


def test_beams_and_samples():
    for name in ("llama", "mistral, window"):
        for options in (dict(num_beams=4), dict(num_beams=4, num_return_sequences=3), dict(num_beams=3, length_penalty=2.0)):
            m = model(name)
            got = generate(m, AuraCache(m.config, "kf32vf32"), **options)
            assert torch.equal(got[0], plain(name, **options)[0]), f"{name} {options}"
        runs = []
        for m, cache in ((model(name, "eager"), transformers.DynamicCache), (model(name), None)):
            torch.manual_seed(5)
            cache = AuraCache(m.config, "kf32vf32") if cache is None else cache(config=m.config)
            runs.append(generate(m, cache, do_sample=True, num_return_sequences=4)[0])
        assert torch.equal(*runs), f"{name}: samples"


def test_beams_share_memory():
    m, given = model("llama"), prompts(1, 1000, (0,))
    cache = AuraCache(m.config)
    generate(m, cache, given, num_beams=4)
    info = cache.layers[1].store.info()
    assert info["seqs"] == 4 and info["holders"] == 16 and info["pages"] - info["free_pages"] <= 3 + 4, info


def test_assisted_and_lookup():
    for name in ("llama", "gemma3, window", "mistral, window"):
        helper = model("llama", num_hidden_layers=1)
        given = prompts(1, 60, (0,))
        given["input_ids"][0, 30:] = given["input_ids"][0, :30]
        for options in (dict(assistant_model=helper), dict(prompt_lookup_num_tokens=5)):
            m = model(name)
            got = generate(m, AuraCache(m.config, "kf32vf32"), given, max_new_tokens=40, **options)
            assert torch.equal(got[0], plain(name, given, max_new_tokens=40)[0]), f"{name} {list(options)}"


def test_crop():
    m, given = model("llama"), prompts(2, 40, (7, 0))
    cache = AuraCache(m.config, "kf32vf32")
    want = generate(m, cache, given)
    cache.crop(-(cache.get_seq_length() - 39))
    assert cache.get_seq_length() == 39 and [len(seq) for seq in cache.layers[0].seqs] == [32, 39]
    same(generate(m, cache, given), want, "again from token 39")
    cache.crop(torch.tensor(3 - cache.get_seq_length()))  # into the padding of row 0; prompt lookup has such numbers
    assert all(type(n) is int for n in (cache.get_seq_length(), *cache.layers[0].pads))
    assert [len(seq) for seq in cache.layers[0].seqs] == [0, 3] and cache.layers[0].pads == [3, 0]


def test_windows_give_memory_back():
    m, given = model("mistral, window"), prompts(1, 1500, (0,))
    cache, whole = AuraCache(m.config), AuraCache()
    generate(m, cache, given)
    generate(m, whole, given)
    assert cache.bytes < 0.8 * whole.bytes and cache.layers[0].seqs[0].first > 400, f"{cache.bytes}, {whole.bytes} without a window"
    for prefill in ("exact", "codes"):
        for pads in ((0,), (700,)):
            given = prompts(1, 1500, pads)
            same(generate(m, AuraCache(m.config, "kf32vf32", prefill=prefill), given), plain("mistral, window", given), f"{prefill} {pads}")


def test_turns_copies_chunks():
    for name in ("llama", "gemma3, window"):
        m, given = model(name), prompts()
        cache, real = AuraCache(m.config, "kf32vf32"), transformers.DynamicCache(config=m.config)
        for turn in range(3):
            same(generate(m, cache, given), generate(model(name, "eager"), real, given), f"{name} turn {turn}")
            twin = copy.deepcopy(cache)
            grown = cache.get_seq_length() - given["input_ids"].shape[1] + 1
            ids = torch.cat([given["input_ids"], torch.full((2, grown), 9), torch.full((2, 8), 11)], 1)
            mask = torch.cat([given["attention_mask"], torch.ones(2, grown + 8, dtype=torch.long)], 1)
            given = dict(input_ids=ids, attention_mask=mask)
            before = cache.get_seq_length()
            generate(m, twin, given)
            assert cache.get_seq_length() == before, "a copy grew, and the original with it"
        chunked = generate(m, AuraCache(m.config, "kf32vf32"), prompts(), prefill_chunk_size=9)
        same(chunked, plain(name), f"{name} in chunks")


def test_later_parts_see_themselves():
    """With plain numbers, taken for codes, nothing but the arithmetic differs. Few tokens are a step. The first part of one row is
    padding alone."""
    plain_kinds, cuts = _layer._PLAIN, ((0, 30), (30, 31), (31, 100), (100, 103), (103, 150))
    for name in ("llama", "mistral, window", "gemma2, softcap", "gpt_oss, sinks"):
        given, eager, m, went = prompts(2, 150, (30, 7)), model(name, "eager"), model(name), []
        try:
            _layer._PLAIN = ()
            for cache, reader in ((transformers.DynamicCache(config=m.config), eager), (AuraCache(m.config, "kf32vf32"), m)):
                logits = [reader(input_ids=given["input_ids"][:, a:b], attention_mask=given["attention_mask"][:, :b],
                                 past_key_values=cache).logits for a, b in cuts]
                went.append(torch.cat(logits, 1)[:, 30:])
        finally:
            _layer._PLAIN = plain_kinds
        off = float((went[1] - went[0]).abs().max() / went[0].abs().max())
        assert off < TIGHT and cache.layers[0].pads == [30, 7] and cache.get_seq_length() == 150, f"{name}: {off}"


def test_later_parts_with_codes():
    """A part that sees itself is nearer to the exact one; also where a window's memory is used again."""
    ids = prompts(1, 1200, (0,))["input_ids"]
    for dtype in (torch.float32, torch.bfloat16):
        m, far, logits = model("llama", dtype=dtype), [], []
        for format, prefill in (("kf32vf32", "exact"), ("k2v2", "exact"), ("k2v2", "codes")):
            cache = AuraCache(m.config, format, prefill=prefill)
            m(input_ids=ids[:, :100], past_key_values=cache)
            logits.append(m(input_ids=ids[:, 100:], past_key_values=cache).logits.float())
            far.append(float((logits[-1] - logits[0]).square().mean().sqrt()))
        assert far[1] < far[2] / 3, f"{dtype}: {far}"
    ids, got, m = prompts(1, 2000, (0,))["input_ids"], [], model("mistral, window")
    for format in ("kf32vf32", "k8v8"):
        cache = AuraCache(m.config, format)
        parts = [ids[:, a:b] for a, b in ((0, 100), (100, 1300), (1300, 2000))]
        got.append(torch.cat([m(input_ids=part, past_key_values=cache).logits for part in parts], 1))
    assert cache.layers[0].seqs[0].first > 1000
    assert float((got[1] - got[0]).abs().max() / got[0].abs().max()) < 0.01


def test_later_parts_that_are_refused():
    k, q = looking(2, 100)
    for spoilt in (0, 1):  # a key, then a query
        cache = AuraCache(format="k4v4")
        ours.attention(module_of(2), q[:, :, :60], *cache.update(k[:, :, :60], k[:, :, :60], 0), None, is_causal=True)
        keys, queries = k[:, :, 60:].clone(), q[:, :, 60:].clone()
        (keys, queries)[spoilt][1, 0, 25, 3] = torch.nan
        key, value = cache.update(keys, keys, 0)
        status = (aura.Status.BAD_VALUE, aura.Status.NOT_FINITE)[spoilt]
        refused(status, lambda: ours.attention(None, queries, key, value, None, is_causal=True))
        assert cache.get_seq_length() == 60 and [len(seq) for seq in cache.layers[0].seqs] == [60, 60]


def test_reset():
    m = model("llama")
    cache = AuraCache(m.config, "k4v4")
    want = generate(m, cache)
    held = cache.bytes
    cache.reset()
    assert cache.get_seq_length() == 0 and cache.bytes == 0 and held > 0
    same(generate(m, cache), want, "after reset", 0)


def test_dtypes():
    for dtype, tolerance in ((torch.bfloat16, 0.04), (torch.float16, 5e-3)):
        m, eager = model("llama", dtype=dtype), model("llama", "eager", dtype)
        given = prompts()
        cache = AuraCache(m.config, "kf32vf32")
        got = m(**given, past_key_values=cache).logits
        want = eager(**given, past_key_values=transformers.DynamicCache(config=m.config)).logits
        assert got.dtype == dtype and cache.layers[0].keys.dtype == dtype
        keep = given["attention_mask"].bool()
        error = float((got[keep].float() - want[keep].float()).abs().max() / want.float().abs().max())
        assert error < tolerance, f"{dtype}: {error:.3f}"
        generate(m, AuraCache(m.config, "k4v4"))
        assert not ours.counts["decoded"]


def test_files():
    for name in ("llama", "gemma3, window", "llama, dim 32"):
        m, given = model(name), prompts()
        cache = AuraCache(m.config, "k4v4")
        m(**given, past_key_values=cache)
        ids, mask = torch.full((2, 1), 5), torch.ones(2, 41, dtype=torch.long)
        mask[0, :7] = 0
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "cache.aura")
            cache.save(path)
            loaded = AuraCache.load(path, m.config)
            assert path.stat().st_size < 3 * cache.bytes and loaded.get_seq_length() == 40
            a, b = (m(input_ids=ids, attention_mask=mask, past_key_values=c).logits for c in (cache, loaded))
            assert torch.equal(a, b), name
            assert torch.equal(cache.layers[0].keys + 0, loaded.layers[0].keys + 0), f"{name}: padding elsewhere"
            refused(aura.Status.BAD_ARGUMENT, lambda: AuraCache.load(path, m.config, format="k8v8"), "format")
            data = bytearray(path.read_bytes())
            assert AuraCache.load(data, m.config).get_seq_length() == 40
            data[len(data) // 2] ^= 4
            path.write_bytes(data)
            refused(aura.Status.BAD_FILE, lambda: AuraCache.load(path, m.config))
            refused(aura.Status.BAD_ARGUMENT, lambda: (cache.save(path), AuraCache.load(path, model(name, num_hidden_layers=4, layer_types=None).config)),
                    "layers")


def test_quality_and_profile():
    """Fewer bits, further off, and not by much; a profile reaches the layers it is for."""
    given = prompts(2, 300)
    want, far = plain("llama", given, max_new_tokens=2)[1][-1], []
    m = model("llama")
    for format in ("k8v8", "k4v4", "k2v2"):
        got = generate(m, AuraCache(m.config, format, prefill="codes"), given, max_new_tokens=2)[1][-1]
        far.append(float((got - want).abs().max() / want.abs().max()))
    assert 0 < far[0] < 0.02 and far[0] < far[1] < 0.3 and far[1] < far[2], far
    profile = aura.Profile(2)
    profile[1] = torch.full((2, 64), 1.5)
    cache, before = AuraCache(m.config, "k4v4", profile=profile), AuraCache(m.config, "k4v4")
    for c in (cache, before):
        m(**prompts(), past_key_values=c)
    ours_of = [c.layers[i].store.to_bytes() for i in (0, 1) for c in (cache, before)]
    assert ours_of[0] == ours_of[1] and ours_of[2] != ours_of[3]
    metric = torch.eye(64)[tuple(torch.tril_indices(64, 64))].expand(2, -1)
    profile.put(0, format="kt4vt4", k_metric=metric * 2, v_metric=metric)
    profile.put(1, v_balance=torch.full((2, 64), 0.5))
    for given, formats in ((None, ["kt4vt4", "k4v4"]), ("kt3vt3", ["kt3vt3"] * 2), ("kf16v4", ["kf16v4"] * 2)):
        cache = AuraCache(m.config, given, profile=profile)
        m(**prompts(), past_key_values=cache)
        have = [layer.store._get_info().config for layer in cache.layers]
        assert [layer.store.format for layer in cache.layers] == formats
        assert [bool(c.k_metric) for c in have] == [given != "kf16v4", False] and [bool(c.v_metric) for c in have] == [True, False]
        assert [bool(c.v_balance) for c in have] == [False, True]
    with tempfile.TemporaryDirectory() as folder:
        cache.save(path := pathlib.Path(folder, "cache"))
        assert AuraCache.load(path, m.config, profile=profile).layers[0].store.format == "kf16v4"


def seen_by(m, ids):
    """Queries and values of every layer, as the attention function gets them, and the modules."""
    seen = {}

    def look(module, query, key, value, mask, **options):
        seen[module.layer_idx] = module, query.double(), value.double()
        special = [options.pop(name, None) for name in ("scaling", "softcap", "s_aux")]
        return ours.attend_plainly(module, query, key, value, mask, *special, options)

    transformers.AttentionInterface.register("look", look)
    transformers.AttentionMaskInterface.register("look", ours.mask)
    before = m.config._attn_implementation
    m.set_attn_implementation("look")
    m(input_ids=ids[None], use_cache=False)
    m.set_attn_implementation(before)
    return seen


def whole(triangle, dim):
    out = torch.zeros(len(triangle), dim, dim, dtype=torch.float64)
    below = torch.tril_indices(dim, dim)
    out[:, below[0], below[1]] = torch.as_tensor(triangle, dtype=torch.float64)
    return out + out.tril(-1).mT


def test_calibrate():
    """What calibrate() says of keys and values is what errors there cost: of logits, and behind the next product."""
    for name in ("llama", "mistral, window", "gemma2, softcap", "gpt_oss, sinks", "gpt2", "qwen3_next, hybrid"):
        m = model(name)
        torch.manual_seed(4)
        ids = torch.randint(2, 128, (90,))
        profile, seen = ours.calibrate(m, [ids, ids]), seen_by(m, ids)
        assert seen and m.config._attn_implementation == "aura" and len(profile) == m.config.num_hidden_layers, name
        for index, (module, q, v) in seen.items():
            found, dim, heads, group = profile.options(index), v.shape[3], v.shape[1], q.shape[1] // v.shape[1]
            want = torch.einsum("hti,htj->hij", q[0], q[0]).reshape(heads, group, dim, dim).mean(1) / q.shape[2]
            have = whole(found["k_metric"], dim)
            assert torch.allclose(have, want, rtol=1e-4, atol=1e-6 * float(want.max())), f"{name}: keys"
            product = next(getattr(module, x) for x in ("o_proj", "c_proj") if hasattr(module, x))
            error, nothing, cost = torch.randn(heads, dim), torch.zeros(heads * group, dim), 0
            for h in range(heads * group):
                behind = nothing.clone()
                behind[h] = error[h // group]
                cost += float((product(behind.flatten()) - product(nothing.flatten())).double().square().sum())
            metric = whole(found["v_metric"], dim)
            have = float(torch.einsum("hi,hij,hj->", error.double(), metric, error.double()))
            assert abs(have / cost - 1) < 1e-4, f"{name}: values"
            seen_values = v[0][:, 4:]  # pinned tokens are never encoded
            balance = seen_values.square().mean(1) ** -0.375 * metric.diagonal(dim1=1, dim2=2) ** 0.125
            balance /= balance.log().mean(1, keepdim=True).exp()
            assert torch.allclose(torch.as_tensor(found["v_balance"]).double(), balance, rtol=1e-4), f"{name}: balance"
        cache = AuraCache(m.config, "k4v4", profile=profile)
        generate(m, cache)
        config = cache.layers[index].store._get_info().config
        assert config.balance and config.v_balance and config.k_metric and config.v_metric, name
    refused(aura.Status.UNSUPPORTED, lambda: ours.calibrate(model("bloom, alibi"), [ids]), "itself")
    refused(aura.Status.BAD_ARGUMENT, lambda: ours.calibrate(m, [ids[:63]]), "64 at least")
    assert m.config._attn_implementation == "aura"


def looking(*rows):
    """Keys, and queries that look in few directions, [rows, heads, tokens, 64] each."""
    torch.manual_seed(2)
    looks = torch.ones(64) * 0.1
    looks[::16] = 3
    turn = torch.linalg.qr(torch.randn(64, 64))[0]
    return torch.randn(rows[0], 2, rows[1], 64), (torch.randn(rows[0], 4, rows[1], 64) * looks) @ turn


def module_of(groups):
    module = torch.nn.Module()
    module.num_key_value_groups = groups
    return module


def cost(cache, k, q, part):
    """What errors of stored keys do to the logits of queries."""
    error = (cache.layers[0].keys - k)[:, :, part].repeat_interleave(2, 1)
    return float((q[:, :, part] @ error.transpose(2, 3)).square().mean())


def test_learning():
    """Queries that look in few directions: errors of keys there become smaller, whichever way a prompt is read."""
    k, q = looking(1, 1500)
    for prefill in ("exact", "codes"):
        wrong = []
        for learn in (False, True):
            cache = AuraCache(format="k4v4", learn=learn, prefill=prefill)
            for part in (slice(0, 700), slice(700, 1500)):
                key, value = cache.update(k[:, :, part], k[:, :, part], 0)
                ours.attention(module_of(2), q[:, :, part], key, value, None, is_causal=True)
            wrong.append(cost(cache, k, q, slice(800, 1400)))
        assert wrong[1] < 0.8 * wrong[0], f"{prefill}: {wrong}"


def test_learning_from_one_prompt():
    """Its own keys are stored with what its queries say: of short ones too, of several rows, and behind padding, which teaches
    nothing."""
    for rows, tokens, pad in ((1, 200, 0), (1, 700, 0), (2, 100, 0), (2, 1200, 600)):
        k, q = looking(rows, tokens)
        noise, given = torch.randn(rows, 4, pad, 64) * 30, torch.ones(rows, tokens, dtype=torch.bool)
        q[:, :, :pad], given[:, :pad] = noise, 0
        asked = dict(batch_size=rows, q_length=tokens, kv_length=tokens, q_offset=0, kv_offset=0, attention_mask=given)
        asked.update(mask_function=transformers.masking_utils.causal_mask_function)
        for way in ("aura", "sdpa", "sdpa, rows that see nothing see all"):
            wrong = []
            for learn in (False, True):
                cache = AuraCache(format="k4v4", learn=learn)
                key, value = cache.update(k, k, 0)
                if way == "aura":
                    ours.attention(module_of(2), q, key, value, ours.mask(**asked))
                else:
                    mask = ours.mask(**asked).real()
                    mask[:, :, :pad] |= "all" in way
                    torch.nn.functional.scaled_dot_product_attention(q, key, value, mask, enable_gqa=True)
                wrong.append(cost(cache, k, q, slice(pad + 4, tokens - 64)))
            assert wrong[1] < 0.8 * wrong[0], f"{way}: {rows} rows of {tokens}, {pad} of them padding: {wrong}"


def test_what_teaches_nothing():
    """Prompts that are refused, formats with plain keys, metrics of a profile; and what teaches little."""
    k, q = looking(1, 200)
    metric = torch.eye(64)[tuple(torch.tril_indices(64, 64))].expand(2, -1)
    profile = aura.Profile(1)
    profile.put(0, k_metric=metric)
    asked, attend = [], lib.aura_attend
    try:
        lib.aura_attend = lambda *arguments: asked.append(1) or attend(*arguments)
        learns = dict(format="k4v4")
        for options in (dict(format="kf16v4"), {**learns, "profile": profile}, {**learns, "learn": False}, learns):
            cache = AuraCache(model("llama", num_hidden_layers=1).config, **options)
            ours.attention(module_of(2), q, *cache.update(k, k, 0), None, is_causal=True)
            assert len(asked) == (3 if options is learns else 0), options  # 512 of 200
        asked.clear()
        ours.attention(module_of(2), q[:, :, :127], *AuraCache(**learns).update(k[:, :, :127], k[:, :, :127], 0), None, is_causal=True)
        assert len(asked) == 1, "few queries are asked once"
        asked.clear()
        cache, bad = AuraCache(format="k4v4"), k.clone()
        bad[0, 1, 150, 3] = torch.nan
        key, value = cache.update(k, bad, 0)
        refused(aura.Status.BAD_VALUE, lambda: ours.attention(module_of(2), q, key, value, None, is_causal=True))
        assert not asked and cache.get_seq_length() == 0
    finally:
        lib.aura_attend = attend


def test_says_once_that_it_decodes():
    heard = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())
    logging.getLogger("aura.transformers").addHandler(handler)
    _lazy._said.clear()
    m = model("llama")
    generate(m, AuraCache(m.config))
    assert not heard, heard
    m = model("llama", "eager")
    generate(m, AuraCache(m.config))
    generate(m, AuraCache(m.config))
    assert len(heard) == 1 and "decoded" in heard[0], heard
    weights = m(**prompts(), past_key_values=AuraCache(m.config, "kf32vf32"), output_attentions=True).attentions
    want = m(**prompts(), past_key_values=transformers.DynamicCache(), output_attentions=True).attentions
    assert torch.allclose(weights[1], want[1], atol=1e-6)


def test_errors():
    refused(aura.Status.BAD_ARGUMENT, lambda: AuraCache(model("llama").config, "k9v9"), "k9v9")
    refused(aura.Status.BAD_ARGUMENT, lambda: AuraCache(prefill="fast"), "fast")
    cache = AuraCache(model("llama").config)
    k = torch.randn(2, 2, 3, 64)
    cache.update(k, k, 0)
    refused(aura.Status.BAD_ARGUMENT, lambda: cache.update(k[:1], k[:1], 0), "rows")
    layer, spoilt, q = cache.layers[0], k.clone(), torch.randn(2, 4, 3, 64)
    layer.flush()
    spoilt[1, 0, 2, 5] = float("nan")
    for prefill in (True, False):  # attended to, or only stored
        key, value = cache.update(spoilt, k, 0)
        ask = (lambda: ours.attention(None, q, key, value, None, is_causal=True)) if prefill else (lambda: key + 0)
        refused(aura.Status.BAD_VALUE, ask)
        assert cache.get_seq_length() == 3 and [len(seq) for seq in layer.seqs] == [3, 3]
    out = ours.attention(None, q, *cache.update(k, k, 0), None, is_causal=True)[0]
    assert torch.isfinite(out).all() and cache.get_seq_length() == 6
    m = model("qwen3_next, hybrid")
    hybrid = AuraCache(m.config)
    generate(m, hybrid)
    refused(aura.Status.UNSUPPORTED, lambda: hybrid.save("/nowhere"), "LinearAttentionLayer")


def test_answers_that_are_no_numbers():
    """A query that is NaN: the tokens are stored, and what is padding is known."""
    given, causal = torch.tensor([[0] * 3 + [1] * 5, [1] * 8]).bool(), transformers.masking_utils.causal_mask_function
    for window in (0, 4):
        cache = AuraCache(format="kf32vf32", prefill="codes")
        cache.layer_class_to_replicate = functools.partial(AuraLayer, cache.settings, window)
        k, q = torch.randn(2, 2, 9, 64), torch.randn(2, 4, 9, 64)
        q[1, 2, 6] = torch.nan
        key, value = cache.update(k[:, :, :8], k[:, :, :8], 0)
        asked = dict(batch_size=2, q_length=8, kv_length=8, q_offset=0, kv_offset=0, attention_mask=given, mask_function=causal)
        refused(aura.Status.NOT_FINITE, lambda: ours.attention(None, q[:, :, :8], key, value, ours.mask(**asked)))
        layer = cache.layers[0]
        assert cache.get_seq_length() == 8 and layer.pads == [3, 0] and [len(seq) for seq in layer.seqs] == [5, 8]
        held = min(8, window - 1) if window else 8
        want = (k[:, :, :8] * given[:, None, :, None])[:, :, 8 - held :]
        assert torch.equal(layer.keys + 0, want), "tokens elsewhere"


def test_encoders():
    """Keys of another length than the queries, all of which see all: what a decoder asks of its encoder."""
    module = torch.nn.Module()
    module.is_causal = False
    k, v = torch.randn(2, 2, 30, 64), torch.randn(2, 2, 30, 64)
    for tokens in (1, 5):
        cache = AuraCache(format="kf32vf32")
        q = torch.randn(2, 4, tokens, 64)
        for step in range(2):
            key, value = (cache.layers[0].keys, cache.layers[0].values) if step else cache.update(k, v, 0)
            out = ours.attention(module, q, key, value, None, scaling=0.125)[0]
            want = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=0.125, enable_gqa=True).transpose(1, 2)
            assert torch.allclose(out, want, atol=1e-5), f"{tokens} queries, step {step}"


def test_strides():
    """Tensors that cannot be read in place, step after step; then one that can, of the same shape."""
    def spread(x):
        return torch.stack([x, x], -1)[..., 0]

    caches = [AuraCache(format="kf32vf32"), AuraCache(format="kf32vf32")]
    for step in range(6):
        k, v, q = (torch.randn(2, heads, 1, 64) for heads in (2, 2, 4))
        outs = []
        for cache, change in zip(caches, (lambda x: x, spread if step < 4 else lambda x: x)):
            key, value = cache.update(change(k), change(v), 0)
            outs.append(ours.attention(None, change(q), key, value, None, is_causal=True)[0])
        assert torch.equal(*outs), f"step {step}"


def test_lifetimes():
    m = model("llama")
    cache = AuraCache(m.config)
    generate(m, cache)
    key = cache.layers[0].keys
    store = cache.layers[0].store
    twin = copy.deepcopy(cache)
    cache.knot = [cache, twin]
    del cache, twin
    gc.collect()
    assert key.shape[2] == 51 and torch.isfinite(key + 0).all()
    del key
    gc.collect()
    assert store.info()["seqs"] == 0


def test_own_cost():
    """What Python adds to a layer and token: everything but the library's own call."""
    m, cache = model("llama"), AuraCache(format="k4v4")
    k, q = torch.randn(1, 2, 64, 64), torch.randn(1, 4, 1, 64)
    cache.update(k, k, 0)
    layer, attention, module = cache.layers[0], ours.attention, m.model.layers[0].self_attn
    layer.flush()
    k, step, best = k[:, :, :1], lib.aura_step, 1e9
    asked = dict(batch_size=1, q_length=1, kv_length=65, q_offset=64, kv_offset=0, attention_mask=None)
    mask = ours.mask(**asked, mask_function=transformers.masking_utils.causal_mask_function)
    try:
        lib.aura_step = lambda *_: 0
        for _ in range(30):
            start = time.perf_counter()
            for _ in range(100):
                layer.length = 64
                key, value = cache.update(k, k, 0)
                attention(module, q, key, value, mask, scaling=0.125)
            best = min(best, (time.perf_counter() - start) / 100)
    finally:
        lib.aura_step = step
    print(f"# {best * 1e6:.1f} us of Python for a layer and token")
    assert best < 60e-6, f"{best * 1e6:.0f} us"
