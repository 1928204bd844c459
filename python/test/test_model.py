"""A real model, SmolLM2 from its GGUF (AURA_MODEL says where), and the tool beside it (AURA_TOOL): the same words.

With --exact the tool rounds as little as transformers does. Still tokens may part where two are about equally likely: a key that lies
between two codes may go either way. Then the test asks how far apart transformers has them."""
import json
import os
import pathlib
import subprocess
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

import aura
from aura.transformers import AuraCache, calibrate
from run import Skip

LONG = "It was a bright cold day in the harbour, and the clerks of the insurance company were counting barrels of salt. " + " ".join(
    f"Barrel {i} came from {place}, and weighed {37 * i % 91 + 50} pounds." for i, place in enumerate(("Cadiz", "Bergen", "Riga", "Porto", "Lübeck") * 4))
TEXTS = ["Once upon a time there was a little girl who", "def quicksort(items):\n", LONG]  # most of the last is codes
MARGIN = 0.05  # nats: a few codes that went the other way; without --exact it is 0.2


def model():
    if not os.environ.get("AURA_MODEL"):
        raise Skip("AURA_MODEL does not say where the model is")
    try:
        from aura.bench import load
        return load(os.environ["AURA_MODEL"])
    except ImportError as error:
        raise Skip(str(error))


@torch.no_grad()
def test_words_of_the_tool():
    if not os.environ.get("AURA_TOOL"):
        raise Skip("AURA_TOOL does not say where the tool is")
    m, tokenizer = model()
    m.set_attn_implementation("aura")
    alike = 0
    for text, learn in [(text, True) for text in TEXTS] + [(LONG, False)]:
        learns = [] if learn else ["--no-learn"]
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        command = [os.environ["AURA_TOOL"], "run", os.environ["AURA_MODEL"], "--ids", ",".join(map(str, ids[0].tolist())), "--cache", "k4v4",
                   "-n", "40", "--json", "--exact", *learns]
        said = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        got = m.generate(input_ids=ids, past_key_values=AuraCache(m.config, "k4v4", learn=learn), max_new_tokens=40, do_sample=False,
                         output_logits=True, return_dict_in_generate=True)
        tokens, theirs = got.sequences[0, ids.shape[1] :].tolist(), said["tokens"]
        part = next((i for i, pair in enumerate(zip(tokens, theirs)) if pair[0] != pair[1]), None)
        if part is None:
            print(f"# {text[:40]!r}, {learns}: {len(theirs)} tokens alike")
            alike += 1
            continue
        logits = got.logits[part][0]
        margin = float(logits[tokens[part]] - logits[theirs[part]])
        print(f"# {text[:40]!r}, {learns}: {part} tokens alike, then two that are {margin:.3f} nats apart")
        assert margin < MARGIN, f"{text!r}: token {part} is {theirs[part]} in the tool, which is {margin:.2f} nats less likely than {tokens[part]}"
    assert alike >= 2, "few texts are alike"


def whole(rows, dim):
    """Symmetric matrices of their lower triangles."""
    out, below = torch.zeros(len(rows), dim, dim), torch.tril_indices(dim, dim)
    out[:, below[0], below[1]] = rows
    return out + out.tril(-1).mT


def triangle(matrices):
    below = torch.tril_indices(*matrices.shape[1:])
    return matrices[:, below[0], below[1]]


@torch.no_grad()
def test_profile_of_the_tool():
    """calibrate() of a text finds what `aura calibrate` does, and with that k4v4 diverges less on another.

    The tool's has the channels of keys in another order: a profile belongs to the form of the model that was read."""
    if not os.environ.get("AURA_TOOL") or not os.environ.get("AURA_SOURCE"):
        raise Skip("AURA_TOOL and AURA_SOURCE do not say where the tool and a text are")
    m, tokenizer = model()
    text = pathlib.Path(os.environ["AURA_SOURCE"], "data/dictionary.txt")
    ids = tokenizer(LONG, return_tensors="pt")["input_ids"][0]
    found = calibrate(m, [tokenizer(text.read_text(), return_tensors="pt")["input_ids"][0, :1024]])
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "profile")
        command = [os.environ["AURA_TOOL"], "calibrate", os.environ["AURA_MODEL"], "--text", text, "--tokens", "1024", "-o", path]
        subprocess.run(command, check=True, capture_output=True)
        theirs = aura.Profile.load(path)
    assert len(found) == len(theirs) == m.config.num_hidden_layers
    order = torch.stack([torch.arange(32), torch.arange(32, 64)], 1).flatten()  # a GGUF has what turns together side by side
    for i in range(len(theirs)):
        for name, want in theirs.options(i).items():
            got = torch.as_tensor(found.options(i)[name])
            if name == "balance":
                got = got[:, order]
            elif name == "k_metric":
                got = triangle(whole(got, 64)[:, order][:, :, order])
            off = float(torch.linalg.norm(got - torch.as_tensor(want)) / torch.linalg.norm(torch.as_tensor(want)))
            assert off < 1e-3, f"layer {i}: {name} is off by {off:.3f}"
    far, exact = [], None
    m.set_attn_implementation("aura")
    for format, profile in (("kf32vf32", None), ("k4v4", None), ("k4v4", found), ("k4v4", theirs)):
        cache = AuraCache(m.config, format, profile=profile, prefill="codes", learn=False, rollback=1)
        logits = m(input_ids=ids[None], past_key_values=cache).logits[0, len(ids) // 2 :].double().log_softmax(-1)
        exact = logits if exact is None else exact
        far.append(float((exact.exp() * (exact - logits)).sum(-1).mean()))
    print(f"# {len(ids)} tokens, KLD without a profile {far[1]:.4f}, with it {far[2]:.4f}, the tool's {far[3]:.4f}")
    assert 0 < far[2] < 0.8 * far[1], far
