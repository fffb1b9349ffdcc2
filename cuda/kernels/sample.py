"""Host side of `sample.cu`: the next token of every sampled row, and the settings of each slot that it reads.

`cuda.kernels.reference.sample` and `logprobs` define the numbers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from cuda.kernels.backend import Backend, Event

SOURCE = "sample.cu"
NAMES = ("sample",)
MAX_VOCAB = 1 << 19
"""So that no sum of weights overflows."""
MAX_THREADS = 512
MAX_ALTERNATIVES, MAX_BANNED, MAX_BIAS = 20, 192, 1024
SETTINGS = np.dtype(
    [
        *((name, np.float64) for name in ("temperature", "top_p", "frequency", "presence")),
        ("seed", np.uint64),
        *((name, np.float32) for name in ("inverse_temperature", "min_p", "repetition")),
        *((name, np.int32) for name in ("top_k", "min_tokens", "logprobs", "num_prompt_tokens", "num_banned")),
        *((name, np.int32) for name in ("num_bias", "unused")),
        ("banned", np.int32, MAX_BANNED),
        ("bias", [("id", np.int32), ("value", np.float32)], MAX_BIAS),
    ],
)
"""`Settings` of the kernel."""
_BIAS = SETTINGS.itemsize - 8 * MAX_BIAS


@dataclass(frozen=True)
class SlotSettings:
    """How a slot's tokens are drawn; the defaults change nothing.

    Attributes:
        temperature: 0 takes the likeliest.
        logprobs: How many alternatives to report, at most 20, beside the token's own log-probability; -1: neither.
        num_prompt_tokens: Of the slot's tokens, those that frequency and presence penalties do not count.
        bias: Token to addend, at most 1,024. Tokens outside of the vocabulary are ignored, here and in `banned`.
        banned: At most 192 tokens that the first `min_tokens` outputs cannot be.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    min_tokens: int = 0
    logprobs: int = -1
    num_prompt_tokens: int = 0
    bias: Mapping[int, float] = field(default_factory=dict)
    banned: Sequence[int] = ()


class SamplerTables:
    """The settings of every slot, on the device.

    Copies wait in pinned memory, one place a start; who starts more often than steps run waits for the oldest copy.
    """

    def __init__(self, backend: Backend, vocab_size: int, max_slots: int) -> None:
        self.settings = backend.zeros((max_slots, SETTINGS.itemsize), torch.uint8)
        self._backend = backend
        self._vocab_size = vocab_size
        self._staged = backend.pinned((2 * max_slots, SETTINGS.itemsize), torch.uint8)
        self._copied: list[Event | None] = [None] * (2 * max_slots)
        self._next = 0

    def start(self, slot: int, settings: SlotSettings) -> None:
        """Queue a slot's settings. ValueError if there are too many banned tokens or biases."""
        place, self._next = self._next, (self._next + 1) % len(self._copied)
        if (copied := self._copied[place]) is not None:
            copied.wait()
        staged = self._staged[place]
        used = _fill(staged.numpy().view(SETTINGS), settings, self._vocab_size)
        self._backend.copy(self.settings[slot, :used], staged[:used])
        self._copied[place] = self._backend.record()


class Sampler:
    """Draws for rows of `vocab_size` logits; `tables` holds the slots' settings. ValueError if it is too large.

    `max_threads` of a block changes speed, never results.
    """

    def __init__(self, backend: Backend, vocab_size: int, max_slots: int, *, max_threads: int = MAX_THREADS) -> None:
        if not 1 <= vocab_size <= MAX_VOCAB:
            raise ValueError(f"vocab_size is {vocab_size}; the limit is {MAX_VOCAB}")
        self.tables = SamplerTables(backend, vocab_size, max_slots)
        self._vocab_size = vocab_size
        self._block = (min(max_threads, -(-vocab_size // 128) * 32),)
        self._scratch = backend.empty((max_slots, vocab_size), torch.float32)
        (self._sample,) = backend.kernels(SOURCE, NAMES)

    def __call__(  # noqa: PLR0913, PLR0917 - two groups: what is read, what is written
        self,
        logits: torch.Tensor,
        sampled_slots: torch.Tensor,
        sampled_positions: torch.Tensor,
        tokens: torch.Tensor,
        out_tokens: torch.Tensor,
        out_logprobs: torch.Tensor,
        top_ids: torch.Tensor,
        top_logprobs: torch.Tensor,
    ) -> None:
        """Draw row r's token from logits [R, V] for slot sampled_slots[r] (-1: skip), after tokens[slot, :position].

        It goes to out_tokens [R] int32 and tokens[slot, position]. Where the slot wants log-probabilities, out_logprobs
        [R] and the first min(logprobs, V) of top_ids, top_logprobs [R, 20] are written, best first.
        """
        pool = tokens, np.int32(tokens.shape[0]), np.int32(tokens.shape[1])
        self._sample(
            (logits.shape[0],),
            self._block,
            (
                *(logits, np.int32(self._vocab_size), sampled_slots, sampled_positions, *pool),
                *(self.tables.settings, self._scratch, out_tokens, out_logprobs, top_ids, top_logprobs),
            ),
        )


def _fill(record: np.ndarray, settings: SlotSettings, vocab_size: int) -> int:
    """Write one SETTINGS; returns how many of its bytes matter."""
    bias = [(token, value) for token, value in settings.bias.items() if 0 <= token < vocab_size]
    banned = sorted({token for token in settings.banned if 0 <= token < vocab_size})
    if len(bias) > MAX_BIAS or len(banned) > MAX_BANNED:
        raise ValueError(f"{len(bias)} biases and {len(banned)} banned tokens; the limits: {MAX_BIAS}, {MAX_BANNED}")
    record["temperature"], record["top_p"] = settings.temperature, settings.top_p
    record["frequency"], record["presence"] = settings.frequency_penalty, settings.presence_penalty
    record["seed"] = settings.seed
    record["inverse_temperature"] = 1 / max(settings.temperature, 1e-30)
    record["min_p"] = _rounded_up(settings.min_p)
    record["repetition"] = settings.repetition_penalty
    record["top_k"], record["min_tokens"] = min(settings.top_k, vocab_size), settings.min_tokens
    record["logprobs"], record["num_prompt_tokens"] = settings.logprobs, settings.num_prompt_tokens
    record["num_banned"], record["num_bias"] = len(banned), len(bias)
    record["banned"][0, : len(banned)] = banned
    record["bias"][0, : len(bias)] = bias
    return _BIAS + 8 * len(bias)


def _rounded_up(value: float) -> np.float32:
    """The least float32 that is not below: float32 weights compare with it as with the value itself."""
    rounded = np.float32(value)
    return rounded if float(rounded) >= value else np.nextafter(rounded, np.float32(np.inf))
