"""Cases of the kernels that know a step's rows: positions and pages, attention, the draw of tokens."""

from dataclasses import asdict

import numpy as np
import torch

from cuda.check.cases.case import Array, Sizes, used_share
from cuda.check.cases.rows import EPS, ROUNDING, int32, normal
from cuda.kernels import reference
from cuda.kernels.attention import AttentionShape, PagedAttention
from cuda.kernels.backend import Backend, on_device
from cuda.kernels.reference import Draw
from cuda.kernels.rope_and_store import RopeAndStore
from cuda.kernels.sample import MAX_ALTERNATIVES, Sampler, SlotSettings

PAGE_SIZE = 16
ATTENTION_ROUNDING = {torch.float32: 4e-6, torch.bfloat16: 2**-6}
PROMPT, OUTPUT = [3, 3, 7], [3, 11, 7]
DRAWS = (
    Draw(temperature=0),
    Draw(),
    Draw(temperature=0.4),
    Draw(top_k=1),
    Draw(top_k=40),
    Draw(top_p=0.7),
    Draw(min_p=0.2),
    Draw(top_k=50, top_p=0.9, min_p=0.01, temperature=1.5),
    Draw(repetition_penalty=1.5),
    Draw(frequency_penalty=0.7, presence_penalty=-1.5),
    Draw(logit_bias={5: 4.0, 7: -3.0}),
    Draw(temperature=0, banned=(0, 1, 2, 3)),
)


def rope_and_store(backend: Backend, dtype: torch.dtype, sizes: Sizes) -> float:
    """Normed, rotated heads; keys and values in their pages; padding and pages outside the pool left alone."""
    heads, kv_heads, dim = sizes.num_heads, sizes.num_kv_heads, sizes.head_dim
    num_heads, num_pages = heads + 2 * kv_heads, 5
    qkv = normal(1, dtype, 4, num_heads * dim)
    norms = normal(2, dtype, dim), normal(3, dtype, dim)
    frequencies = 1e4 ** -(np.arange(dim // 2) / (dim // 2))
    angles = np.arange(40)[:, None] * frequencies
    table = torch.from_numpy(np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32))
    slots, positions = [1, 0, -1, 1], [17, 5, 3, 35]
    page_tables = int32([[2, 0, 1], [3, 4, num_pages]])
    there = on_device(backend, qkv)
    pool = backend.zeros((num_pages, 2, kv_heads, PAGE_SIZE, dim), dtype)
    arrays = [on_device(backend, each) for each in (page_tables, int32(slots), int32(positions), table, *norms)]
    RopeAndStore(backend, dtype, AttentionShape(heads, kv_heads, dim, PAGE_SIZE), EPS)(there, pool, *arrays)
    backend.synchronize()

    rows = qkv.double().numpy().reshape(4, num_heads, dim)
    q, k, v = np.split(rows, [heads, heads + kv_heads], axis=1)
    q, k = (reference.rms_norm(x, norm.double().numpy(), EPS) for x, norm in zip((q, k), norms, strict=True))
    q, k = (reference.rope(x, np.array(positions), frequencies) for x in (q, k))
    right = np.concatenate([q, rows[:, heads:]], axis=1)
    right[2] = rows[2]
    stored = np.zeros(pool.shape)
    for token, page in ((0, 4), (1, 2)):
        stored[page, 0, :, positions[token] % PAGE_SIZE] = k[token]
        stored[page, 1, :, positions[token] % PAGE_SIZE] = v[token]
    shares = (
        used_share(there.view(rows.shape), right, ROUNDING[dtype], 4e-6),
        used_share(pool, stored, ROUNDING[dtype], 4e-6),
    )
    return max(shares)


def attention(backend: Backend, dtype: torch.dtype, sizes: Sizes) -> float:
    """A decode row over the whole context, a chunk of a prompt, a first token and padding, in one step."""
    heads, kv_heads, dim = sizes.num_heads, sizes.num_kv_heads, sizes.head_dim
    kernel = PagedAttention(
        backend, dtype, AttentionShape(heads, kv_heads, dim, PAGE_SIZE), partial_bytes=max(1 << 20, sizes.context << 12)
    )
    segments = [(0, sizes.context - 1, 1), (1, 3, 37), (2, 0, 1)]
    lengths = [start + count for _, start, count in segments]
    pages = np.random.default_rng(0).permutation(sum(-(-length // PAGE_SIZE) for length in lengths))
    tables = np.full((3, -(-max(lengths) // PAGE_SIZE)), 1 << 30, np.int32)
    for slot, length in enumerate(lengths):
        taken, pages = np.split(pages, [-(-length // PAGE_SIZE)])
        tables[slot, : len(taken)] = taken
    pool = normal(1, dtype, 1 + int(tables[tables < 1 << 30].max()), 2, kv_heads, PAGE_SIZE, dim)
    slots = [slot for slot, _, count in segments for _ in range(count)] + [-1]
    qkv = 2 * normal(2, dtype, len(slots), (heads + 2 * kv_heads) * dim)
    items, num_items = kernel.planner.work_items(*zip(*segments, strict=True))
    out = backend.empty((len(slots), heads * dim), dtype)
    host = qkv, pool, torch.from_numpy(tables), int32(slots), torch.from_numpy(items), torch.from_numpy(num_items)
    kernel(out, *(on_device(backend, each) for each in host))
    backend.synchronize()

    queries = qkv[:, : heads * dim].float().numpy().reshape(-1, heads, dim)
    right: list[Array] = []
    for slot, start, count in segments:
        done = sum(map(len, right))
        table = tables[slot, : -(-(start + count) // PAGE_SIZE)].tolist()
        right.append(reference.paged_attention(queries[done : done + count], pool.float().numpy(), table, start, None))
    right.append(np.zeros((1, heads, dim)))
    return used_share(out.view(-1, heads, dim), np.concatenate(right), 0, ATTENTION_ROUNDING[dtype])


def sample(backend: Backend, _dtype: torch.dtype, sizes: Sizes) -> float:
    """Every setting's token is the defined one, in the answer and in its slot; log-probabilities are close."""
    random, count = np.random.default_rng(0), len(DRAWS)
    logits = (2 * random.normal(size=(count, sizes.vocab))).astype(np.float32)
    sampler = Sampler(backend, sizes.vocab, count)
    history = int32([[*PROMPT, *OUTPUT, 0]] * count)
    for slot, draw in enumerate(DRAWS):
        sampler.tables.start(slot, _settings(draw))
    order = random.permutation(count).astype(np.int32)
    tokens = on_device(backend, history)
    drawn, logprobs = backend.empty((count,), torch.int32), backend.empty((count,), torch.float32)
    top_ids, top_logprobs = (
        backend.empty((count, MAX_ALTERNATIVES), dtype) for dtype in (torch.int32, torch.float32)
    )  # fmt: skip
    host = torch.from_numpy(logits), torch.from_numpy(order), torch.full((count,), 6, dtype=torch.int32)
    rows, slots, positions = (on_device(backend, each) for each in host)
    sampler(rows, slots, positions, tokens, drawn, logprobs, top_ids, top_logprobs)
    backend.synchronize()
    right = [reference.sample(row, PROMPT, OUTPUT, DRAWS[slot]) for row, slot in zip(logits, order, strict=True)]
    if drawn.tolist() != right or tokens.cpu()[order, 6].tolist() != right:
        return float("inf")
    defined = [reference.logprobs(row, MAX_ALTERNATIVES) for row in logits]
    own = np.array([all_of[token] for (all_of, _), token in zip(defined, right, strict=True)])
    best = np.array([all_of[ids] for all_of, ids in defined])
    if top_ids.tolist() != [ids.tolist() for _, ids in defined]:
        return float("inf")
    return max(used_share(logprobs, own, 1e-5, 1e-5), used_share(top_logprobs, best, 1e-5, 1e-5))


def _settings(draw: Draw) -> SlotSettings:
    fields = asdict(draw)
    return SlotSettings(
        bias=fields.pop("logit_bias"),
        min_tokens=len(OUTPUT) + 1,
        logprobs=MAX_ALTERNATIVES,
        num_prompt_tokens=len(PROMPT),
        **fields,
    )
