"""How far a model's next-token probabilities move with fewer bits: python kld.py MODEL.gguf TEXT [PICTURE.png]

Loads a model, generates a few words with three caches, then reads a text with every cache and compares the probabilities of each next
token with those of the exact cache: the mean Kullback-Leibler divergence, against the bits that a number takes."""
import pathlib
import sys

import torch

import aura
from aura.bench import load
from aura.transformers import AuraCache

TOKENS = 512  # of the text; each cache reads the first half at once, the other half token by token
FORMATS = ["k2v2", "k3v3", "k4v4", "k5v5", "k6v6", "k8v8"]


def next_tokens(model, ids, cache):
    """Log-probabilities after each token of the second half, [tokens, vocabulary]."""
    half = ids.shape[1] // 2
    model(input_ids=ids[:, :half], past_key_values=cache)
    logits = [model(input_ids=ids[:, i : i + 1], past_key_values=cache).logits[0, -1] for i in range(half, ids.shape[1])]
    return torch.log_softmax(torch.stack(logits).double(), -1)


@torch.no_grad()
def main():
    path, text, *picture = sys.argv[1:]
    model, tokenizer = load(path)
    model.set_attn_implementation("aura")
    head = getattr(model.config, "head_dim", None) or model.config.hidden_size // model.config.num_attention_heads
    bits = aura.formats(head)

    prompt = tokenizer("The capital of France is", return_tensors="pt")
    for format in ("kf32vf32", "k4v4", "k2v2"):
        cache = AuraCache(model.config, format)
        out = model.generate(**prompt, past_key_values=cache, max_new_tokens=12, do_sample=False)
        print(f"{format:9} {cache.bytes / 1e6:6.2f} MB  {tokenizer.decode(out[0])!r}")

    ids = tokenizer(pathlib.Path(text).read_text(), return_tensors="pt")["input_ids"][:, :TOKENS]
    exact = next_tokens(model, ids, AuraCache(model.config, "kf32vf32"))
    points = []
    for format in FORMATS:
        got = next_tokens(model, ids, AuraCache(model.config, format))
        kld = float((exact.exp() * (exact - got)).sum(-1).mean())
        points.append((bits[format], kld))
        print(f"{format}  {bits[format]:.2f} bits  KLD {kld:.2e}")

    if picture:
        import matplotlib
        matplotlib.use("Agg")
        from matplotlib import pyplot
        pyplot.semilogy(*zip(*points), "o-")
        pyplot.xlabel("bits per number")
        pyplot.ylabel("mean KLD of next tokens")
        pyplot.savefig(picture[0], dpi=120)


if __name__ == "__main__":
    main()
