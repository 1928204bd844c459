"""Attention in double, written down plainly: what tests compare with."""
import numpy as np


def attention(q, k, v, scale=None, softcap=0, window=0, sinks=None, alibi=None, causal=True, mask=None, since=None, until=None):
    """q [queries, q_heads, dim], k and v [tokens, kv_heads, ...]: (out, lse)."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    queries, heads, dim = q.shape
    tokens, group = len(k), heads // k.shape[1]
    out, lse = np.zeros((queries, heads, v.shape[2])), np.full((queries, heads), -np.inf)
    for i in range(queries):
        position = tokens - queries + i if causal else tokens - 1
        place = np.arange(tokens)
        if until is not None:
            seen = (place >= (0 if since is None else since[i])) & (place < until[i])
        elif since is not None:
            seen = (place >= since[i]) & (place <= position)
        else:
            seen = (place <= position) & ((place > position - window) if window else True)
        for head in range(heads):
            logit = k[:, head // group] @ q[i, head] * (dim**-0.5 if scale is None else scale)
            if softcap:
                logit = softcap * np.tanh(logit / softcap)
            if alibi is not None:
                logit = logit + alibi[head] * (place - position)
            if mask is not None:
                logit[tokens - mask.shape[-1] :] += mask[i] if mask.ndim == 2 else mask[head, i]
            logit = np.where(seen, logit, -np.inf)
            most = max(logit.max(), -np.inf if sinks is None else sinks[head])
            if most == -np.inf:
                continue
            weight = np.exp(logit - most)
            total = weight.sum() + (0 if sinks is None else np.exp(sinks[head] - most))
            out[i, head], lse[i, head] = weight @ v[:, head // group] / total, most + np.log(total)
    return out, lse


def near(got, want, tolerance, what=""):
    """Fails where a number is further off than `tolerance` of the largest, or no number at all."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape, f"{what}: shape {got.shape}, not {want.shape}"
    error = np.abs(got - want).max() / max(np.abs(want).max(), 1e-30)
    assert error <= tolerance, f"{what}: off by {error:.2e} of the largest, more than {tolerance:.2e}"  # NaN is not <=
