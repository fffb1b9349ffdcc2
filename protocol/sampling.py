"""How the next token of one request is drawn. Values are checked where they enter; later parts may trust them.

The draw itself is defined in `cuda.kernels.reference` and is the same on every device.
"""

from typing import Annotated

from msgspec import Meta, Struct

from protocol.bounds import Count, PositiveCount, Seed, TokenId

MAX_LOGPROBS = 20
MAX_STOP_TOKEN_IDS = 128
MAX_LOGIT_BIAS = 1024

Temperature = Annotated[float, Meta(ge=0, le=2)]
TopP = Annotated[float, Meta(gt=0, le=1)]
MinP = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
RepetitionPenalty = Annotated[float, Meta(gt=0, le=2)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
NumLogprobs = Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)]


class SamplingParams(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Parameters of one request as the scheduler and the devices see them.

    Resolved: every default is filled in by the ingress, the seed (if the client gave none) by the scheduler
    at first admission, so that a restart continues the same draw. `temperature` 0 is greedy; `top_k` 0 is off.
    `logprobs` None is off, 0 reports the sampled token only.
    """

    max_tokens: PositiveCount
    temperature: Temperature = 1.0
    top_p: TopP = 1.0
    top_k: Count = 0
    min_p: MinP = 0.0
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    repetition_penalty: RepetitionPenalty = 1.0
    logit_bias: dict[TokenId, Bias] = {}
    seed: Seed | None = None
    stop_token_ids: Annotated[tuple[TokenId, ...], Meta(max_length=MAX_STOP_TOKEN_IDS)] = ()
    ignore_eos: bool = False
    min_tokens: Count = 0
    logprobs: NumLogprobs | None = None
