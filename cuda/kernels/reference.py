"""What every op means, in plain NumPy: the definition that each device's kernels are tested against.

Slow, float64 inside, written from the papers and not from the kernels. Shape letters: T tokens, R rows, H query heads,
K KV heads, D head size, E hidden, F feed-forward, V vocabulary, S page size. The next token is drawn in this order:

    raw logits ─ repetition penalty ─ frequency and presence penalties ─ logit bias ─ min_tokens ban ─ temperature
               ─ top-k ─ top-p (of what top-k left) ─ min-p (relative to the largest) ─ Gumbel-max

and log-probabilities are those of the raw logits. Greedy (temperature 0) takes the largest after the ban.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    """[T, in] times [out, in] transposed, plus [out]."""
    out = x.astype(np.float64) @ weight.astype(np.float64).T
    return out if bias is None else out + bias


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """X / sqrt(mean(x²) + eps) * weight over the last axis (arXiv:1910.07467)."""
    wide = x.astype(np.float64)
    return np.asarray(wide / np.sqrt(np.mean(wide * wide, axis=-1, keepdims=True) + eps) * weight)


def rope(x: Array, positions: Array, frequencies: Array) -> Array:
    """Rotate [T, heads, D] by position * frequency [D / 2]; halves are the pairs (arXiv:2104.09864)."""
    half = x.shape[-1] // 2
    angles = positions.astype(np.float64)[:, None] * frequencies.astype(np.float64)
    cosine, sine = np.cos(angles)[:, None, :], np.sin(angles)[:, None, :]
    first, second = x[..., :half], x[..., half:]
    return np.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)


def silu_mul(gate_up: Array) -> Array:
    """[T, 2F] = [gate; up] to gate * sigmoid(gate) * up."""
    gate, up = np.split(gate_up.astype(np.float64), 2, axis=-1)
    return np.asarray(gate / (1 + np.exp(-gate)) * up)


def gelu_mul(gate_up: Array) -> Array:
    """[T, 2F] = [gate; up] to gelu(gate) * up, in its tanh form (arXiv:1606.08415, section 2)."""
    gate, up = np.split(gate_up.astype(np.float64), 2, axis=-1)
    return np.asarray(0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3))) * up)


def paged_attention(  # noqa: PLR0913, PLR0917 - as many as attention has
    queries: Array,
    pool: Array,
    page_table: Sequence[int],
    start: int,
    window: int | None,
    soft_cap: float | None = None,
) -> Array:
    """Queries [count, H, D] of one row at positions start … over its keys and values in `pool` [page, 2, K, S, D].

    Each sees the positions up to its own, the latest `window` of them if that is set; with a soft cap, scores become
    soft_cap · tanh(score / soft_cap). Returns [count, H, D].
    """
    count, heads, dim = queries.shape
    kv_heads = pool.shape[2]
    end = start + count
    pages = pool[list(page_table)].astype(np.float64)
    keys = pages[:, 0].transpose(0, 2, 1, 3).reshape(-1, kv_heads, dim)[:end]
    values = pages[:, 1].transpose(0, 2, 1, 3).reshape(-1, kv_heads, dim)[:end]
    out = np.zeros((count, heads, dim))
    for i in range(count):
        first = 0 if window is None else max(0, start + i + 1 - window)
        for head in range(heads):
            group = head // (heads // kv_heads)
            scores = keys[first : start + i + 1, group] @ queries[i, head].astype(np.float64) / np.sqrt(dim)
            if soft_cap is not None:
                scores = soft_cap * np.tanh(scores / soft_cap)
            weights = np.exp(scores - scores.max())
            out[i, head] = weights @ values[first : start + i + 1, group] / weights.sum()
    return out


def philox4x32(key: Sequence[int], counter: Sequence[int]) -> tuple[int, int, int, int]:
    """Philox4x32-10 of a key of 2 words and a counter of 4 (Salmon et al., SC11)."""
    key0, key1 = key
    c0, c1, c2, c3 = counter
    for _ in range(10):
        product0, product1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (
            (product1 >> 32) ^ c1 ^ key0,
            product1 & 0xFFFFFFFF,
            (product0 >> 32) ^ c3 ^ key1,
            product0 & 0xFFFFFFFF,
        )
        key0, key1 = (key0 + 0x9E3779B9) & 0xFFFFFFFF, (key1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3


def uniform(seed: int, position: int, token: int) -> float:
    """The draw's number in (0, 1) for one candidate token at one index of the sequence: it depends on nothing else.

    Key: low and high word of the seed. Counter: (token / 4, position, 0, 0). Word token % 4, as (word + ½) / 2³².
    `position` is the index that the sampled token will have (prompt tokens count from 0).
    """
    words = philox4x32((seed & 0xFFFFFFFF, seed >> 32), (token // 4, position, 0, 0))
    return (words[token % 4] + 0.5) * 2.0**-32


@dataclass(frozen=True)
class Draw:
    """What decides a draw besides the logits; defaults change nothing, `temperature` 0 is greedy."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    banned: tuple[int, ...] = ()
    """Ends that min_tokens still forbids."""
    seed: int = 0


def adjust(logits: Array, prompt: Sequence[int], output: Sequence[int], draw: Draw) -> Array:
    """Penalties, bias and ban on [V]. Repetition counts prompt and output, the other two count outputs."""
    out = logits.astype(np.float64)
    for token in set(prompt) | set(output):
        out[token] = out[token] / draw.repetition_penalty if out[token] > 0 else out[token] * draw.repetition_penalty
    for token in set(output):
        out[token] -= draw.frequency_penalty * list(output).count(token) + draw.presence_penalty
    for token, bias in draw.logit_bias.items():
        out[token] += bias
    out[list(draw.banned)] = -np.inf
    return out


def kept_tokens(logits: Array, draw: Draw) -> Array:
    """Ids that top-k, top-p and min-p leave of adjusted [V], best first, ties by id; never none.

    Top-p keeps the tokens whose predecessors sum to less than p.
    """
    order = np.lexsort((np.arange(len(logits)), -logits))
    if 0 < draw.top_k < len(order):
        order = order[: draw.top_k]
    weights = np.exp((logits[order] - logits[order[0]]) / draw.temperature)
    if draw.top_p < 1:
        before = np.cumsum(weights) - weights
        order = order[(before < draw.top_p * weights.sum()) | (np.arange(len(order)) == 0)]
        weights = weights[: len(order)]
    return np.asarray(order[weights >= draw.min_p])


def sample(logits: Array, prompt: Sequence[int], output: Sequence[int], draw: Draw) -> int:
    """The next token after prompt + output, from raw logits [V]. Ties by lowest id."""
    adjusted = adjust(logits, prompt, output, draw)
    if draw.temperature == 0:
        return int(np.argmax(adjusted))
    kept = np.sort(kept_tokens(adjusted, draw))
    position = len(prompt) + len(output)
    noise = -np.log(-np.log([uniform(draw.seed, position, int(token)) for token in kept]))
    return int(kept[np.argmax((adjusted[kept] - adjusted.max()) / draw.temperature + noise)])


def logprobs(logits: Array, count: int) -> tuple[Array, Array]:
    """Natural log softmax of raw [V]; and the `count` likeliest ids, best first, ties by id."""
    wide = logits.astype(np.float64)
    shifted = wide - wide.max()
    return shifted - np.log(np.exp(shifted).sum()), np.lexsort((np.arange(len(wide)), -wide))[:count]
