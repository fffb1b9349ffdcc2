"""What one seed stands for: a configuration, a pool that is often too small, and clients that misbehave."""

import random
from dataclasses import dataclass

from actors.scheduler.config import SchedulerConfig
from cuda.devices.counting import expected_output
from protocol.messages import Submit
from protocol.sampling import SamplingParams

EOS = 3


@dataclass(frozen=True)
class Behaviour:
    """What the client of one request does beside waiting for its end. Times are seconds after the submission."""

    submit_at: float
    cancel_at: float | None
    stop_at: float | None
    credit_step: int
    """Tokens granted each time all granted ones have arrived; 0: never."""
    read_delay: float


@dataclass(frozen=True)
class Scenario:
    seed: int
    config: SchedulerConfig
    num_groups: int
    num_ranks: int
    """Workers of each group; rank 0 has `num_pages`, the others more."""
    num_pages: int
    page_size: int
    vocab_size: int
    step_delay: float
    requests: list[tuple[Submit, Behaviour]]
    mailbox_capacity: int


def make_scenario(seed: int) -> Scenario:
    rng = random.Random(seed)
    page_size = rng.choice([1, 2, 4, 8])
    max_running = rng.randint(1, 8)
    config = SchedulerConfig(
        max_running=max_running,
        step_tokens=rng.choice([page_size + 1, page_size + max_running, 16, 40]),
        max_waiting=rng.choice([3, 100, 100, 100]),
        max_waiting_tokens=rng.choice([60, 10_000, 10_000, 10_000]),
        batching=rng.choice(["continuous", "continuous", "continuous", "static"]),
        prefix_cache=rng.random() < 0.8,
        chunked_prefill=rng.random() < 0.8,
        overlap=rng.random() < 0.8,
        resume_ttl_s=20.0,
        aging_s=rng.choice([0.1, 30.0]),
        check_invariants=True,
    )
    vocab_size = rng.choice([8, 200, 1000])
    num_pages = rng.randint(32, 96) // page_size + rng.choice([1, 20])
    prefixes = [_tokens(rng, vocab_size, rng.randint(1, 30)) for _ in range(3)]
    limit = num_pages * page_size
    requests = [_request(rng, number, prefixes, vocab_size, limit) for number in range(rng.randint(4, 24))]
    return Scenario(
        seed=seed,
        config=config,
        num_groups=rng.choice([1, 1, 2]),
        num_ranks=rng.choice([1, 1, 1, 1, 2, 3]),
        num_pages=num_pages,
        page_size=page_size,
        vocab_size=vocab_size,
        step_delay=rng.choice([0.0, 0.01, 0.1]),
        requests=requests,
        mailbox_capacity=rng.choice([4, 64]),
    )


def _request(
    rng: random.Random, number: int, prefixes: list[list[int]], vocab_size: int, limit: int
) -> tuple[Submit, Behaviour]:
    prompt = rng.choice(prefixes)[: rng.choice([100, rng.randint(1, 30)])] + _tokens(
        rng, vocab_size, rng.choice([0, 0, 1, 5, 20])
    )
    prompt = prompt[: max(1, limit - 2)]
    max_tokens = rng.choice([1, 2, 8, 20, 40, 60])
    if rng.random() < 0.9:
        max_tokens = max(1, min(max_tokens, limit - len(prompt)))
    slow = rng.random() < 0.3
    ignore_eos = rng.random() < 0.5
    held = expected_output(prompt, rng.randint(0, max_tokens), vocab_size) if rng.random() < 0.15 else []
    if EOS in held and not ignore_eos:
        held = held[: held.index(EOS) + 1]
    submit = Submit(
        request=number + 1,
        prompt_tokens=prompt,
        output_tokens=held,
        sampling=SamplingParams(
            max_tokens=max_tokens,
            seed=rng.choice([None, 7]),
            ignore_eos=ignore_eos,
            stop_token_ids=tuple(_tokens(rng, vocab_size, 1)) if rng.random() < 0.2 and not held else (),
            min_tokens=0,
            logprobs=rng.choice([None, None, 0, 2]),
        ),
        tenant=rng.choice("ab"),
        priority=rng.choice([0, 0, 0, 5, -5]),
        cache_salt=rng.choice(["", "", "salt"]),
        credit=rng.choice([0, 1, 3]) if slow else 4096,
        warm=rng.random() < 0.05 and not held,
    )
    return submit, Behaviour(
        submit_at=rng.choice([0.0, rng.uniform(0, 3)]),
        cancel_at=rng.uniform(0, 3) if rng.random() < 0.2 else None,
        stop_at=rng.uniform(0, 3) if rng.random() < 0.1 else None,
        credit_step=rng.choice([0, 1, 1, 2, 5]) if slow else 1,
        read_delay=rng.choice([0.0, 0.5]),
    )


def _tokens(rng: random.Random, vocab_size: int, count: int) -> list[int]:
    return [rng.randrange(vocab_size) for _ in range(count)]
