"""Generate -> Submit: prompt to token ids, defaults filled in (but the seed, which the scheduler chooses).

Checks what needs the model to be known; what a field may be by itself was checked by the session
(`protocol.validation`). Owns the threads that tokenize long prompts (which does not hold the GIL). Every refusal names
field, value and limit.
"""

import asyncio
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from actors.ingress.config import IngressConfig
from actors.ingress.stream import Stream
from actors.ingress.text import OutputText, TextModel
from protocol.errors import RequestError, invalid
from protocol.messages import FinishReason, Submit, Timing, Usage
from protocol.model_info import ModelInfo
from protocol.sampling import SamplingParams
from protocol.wire import Finished, Generate

T = TypeVar("T")
MESSAGE_CHARS = 64


class RequestReader:
    """Reads what clients ask in terms of one served model."""

    def __init__(self, model: ModelInfo, text: TextModel, config: IngressConfig) -> None:
        self._model = model
        self._text = text
        self._inline_chars = config.inline_chars
        self._default_slo = config.default_slo
        self._threads = ThreadPoolExecutor(config.tokenizer_threads, thread_name_prefix="tokenizer")

    def close(self) -> None:
        """Let the threads go once they are done."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def read(
        self, generate: Generate, *, request: int, tenant: str, max_model_len: int, warm: bool = False
    ) -> Stream:
        """The stream of a request, not yet submitted. Raises RequestError."""
        if generate.resumable:
            raise invalid("resumable", "resumable is true; it is not supported by this version")
        self._check_vocabulary(generate)
        prompt = await self._prompt_tokens(generate)
        if not prompt:
            raise invalid(_input_name(generate), f"{_input_name(generate)} has no tokens; at least 1 is needed")
        max_tokens = output_limit(generate, len(prompt), max_model_len)
        submit = Submit(
            request=request,
            prompt_tokens=prompt,
            output_tokens=generate.resume_tokens or [],
            sampling=self._sampling(generate, 1 if warm else max_tokens),
            tenant=tenant,
            priority=generate.priority,
            cache_salt=generate.cache_salt,
            credit=generate.credit,
            slo=generate.slo or self._default_slo,
            warm=warm,
        )
        output = OutputText(self._text, stop=generate.stop or (), min_tokens=generate.min_tokens)
        stream = Stream(submit, output, self._spell, client_id=generate.id, return_tokens=generate.return_tokens)
        ended = self._ended_before(stream)
        if ended is not None:
            stream.accept()
            stream.end(ended)
        return stream

    def _spell(self, token: int) -> str:
        return self._text.decode([token])

    async def _prompt_tokens(self, generate: Generate) -> list[int]:
        if generate.prompt_tokens is not None:
            return generate.prompt_tokens
        if reading_size(generate) <= self._inline_chars:
            return self._encode(generate)
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._encode, generate)

    def _encode(self, generate: Generate) -> list[int]:
        if generate.messages is not None:
            return self._text.encode_chat(generate.messages)
        return self._text.encode(generate.prompt or "")

    def _check_vocabulary(self, generate: Generate) -> None:
        limit = self._model.vocab_size
        fields: list[tuple[str, Iterable[int]]] = [
            ("prompt_tokens", generate.prompt_tokens or ()),
            ("resume_tokens", generate.resume_tokens or ()),
            ("logit_bias", generate.logit_bias or ()),
            ("stop_token_ids", generate.stop_token_ids or ()),
        ]
        for name, tokens in fields:
            worst = max(tokens, default=0)
            if worst >= limit:
                raise invalid(name, f"{name} has token {worst:,}; the vocabulary ends at {limit - 1:,}")

    def _sampling(self, generate: Generate, max_tokens: int) -> SamplingParams:
        defaults = self._model.defaults
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=_given(generate.temperature, defaults.temperature),
            top_p=_given(generate.top_p, defaults.top_p),
            top_k=max(_given(generate.top_k, defaults.top_k), 0),
            min_p=_given(generate.min_p, 0.0),
            presence_penalty=_given(generate.presence_penalty, 0.0),
            frequency_penalty=_given(generate.frequency_penalty, 0.0),
            repetition_penalty=_given(generate.repetition_penalty, defaults.repetition_penalty),
            logit_bias=generate.logit_bias or {},
            seed=generate.seed,
            stop_token_ids=tuple(generate.stop_token_ids or ()),
            ignore_eos=generate.ignore_eos,
            min_tokens=generate.min_tokens,
            logprobs=generate.logprobs,
        )

    def _ended_before(self, stream: Stream) -> Finished | None:
        """The end of a request whose resume_tokens are a whole output already."""
        tokens, sampling = stream.tokens, stream.submit.sampling
        stop: str | int | None = stream.stop
        if stop is None and tokens and len(tokens) > sampling.min_tokens:
            ends = (
                sampling.stop_token_ids
                if sampling.ignore_eos
                else (*sampling.stop_token_ids, *self._model.eos_token_ids)
            )
            stop = tokens[-1] if tokens[-1] in ends else None
        if stop is None and len(tokens) < sampling.max_tokens:
            return None
        usage = Usage(prompt_tokens=len(stream.submit.prompt_tokens), completion_tokens=len(tokens))
        reason: FinishReason = "length" if stop is None else "stop"
        return Finished(id=stream.client_id, reason=reason, usage=usage, timing=Timing(), stop=stop)


def output_limit(generate: Generate, num_prompt: int, max_model_len: int) -> int:
    """Most output tokens, resumed ones included. Raises RequestError when prompt and output cannot fit together."""
    room = max_model_len - num_prompt
    if room < 1:
        message = (
            f"{_input_name(generate)} has {num_prompt:,} tokens; limit is {max_model_len:,} with at least 1 of output"
        )
        raise RequestError("context_length_exceeded", message, param=_input_name(generate))
    if generate.max_tokens is not None and generate.max_tokens > room:
        message = (
            f"max_tokens is {generate.max_tokens:,} and the prompt has {num_prompt:,} tokens; "
            f"limit is {max_model_len:,} together"
        )
        raise RequestError("context_length_exceeded", message, param="max_tokens")
    limit = generate.max_tokens or room
    if generate.min_tokens > limit:
        raise invalid("min_tokens", f"min_tokens is {generate.min_tokens:,}; it must be at most {limit:,}")
    num_resumed = len(generate.resume_tokens or ())
    if num_resumed > limit:
        raise invalid("resume_tokens", f"resume_tokens has {num_resumed:,} tokens; limit is {limit:,}")
    return limit


def reading_size(generate: Generate) -> int:
    """Characters to read, and for each message as many as its frame in the chat template is worth."""
    return len(generate.prompt or "") + sum(MESSAGE_CHARS + len(one.content) for one in generate.messages or ())


def _input_name(generate: Generate) -> str:
    if generate.messages is not None:
        return "messages"
    return "prompt" if generate.prompt is not None else "prompt_tokens"


def _given(value: T | None, default: T) -> T:
    return default if value is None else value
