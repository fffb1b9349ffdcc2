"""One live request as its client sees it: what was asked, the output tokens so far, what the client has of them.

Owns the order of its events: accepted, tokens, exactly one terminal event, nothing after. Tokens gather here until the
connection takes them, so a slow client costs integers and text (bounded by credit and max_tokens), never frames.

    output tokens of a stream       what the client has
    [0, num_sent)                   its frames, whole
    [num_sent, num_ready)           text complete: the next frame
    [num_ready, len(tokens))        held back: half a character, or maybe the begin of a stop string
"""

from array import array
from collections.abc import Callable

from actors.ingress.text import OutputText, Piece
from protocol.errors import PartFailed
from protocol.messages import RequestFailed, RequestFinished, Submit, TokenDelta, Usage
from protocol.step import TokenLogprob
from protocol.wire import Accepted, Failed, Finished, SessionEvent, Tokens, WireLogprob, WireTopLogprob, failed_event

MAX_FRAME_TOKENS = 256
"""What waited for a slow client comes in frames of this size, which its library will take."""

TOKEN_BYTES = 200
"""A piece of text and its place in a list."""
LOGPROB_BYTES = 130
"""One alternative: a struct, a token id, a float."""


class Stream:
    """Made by `requests`, told by `live_requests` what the scheduler says, emptied by `connection`."""

    def __init__(
        self, submit: Submit, text: OutputText, spell: Callable[[int], str], *, client_id: str, return_tokens: bool
    ) -> None:
        """`spell` gives the text of one token alone, for log-probabilities."""
        self.submit = submit
        self.client_id = client_id
        self.return_tokens = return_tokens
        self.tokens = array("i")
        self.stop: str | None = None
        """The stop string that was found; tokens after it are nobody's."""
        self.is_accepted = False
        self.is_cancelled = False
        self.credit_due = 0
        """Granted, and not yet told to the scheduler."""
        self.credit_length = len(submit.output_tokens) + submit.credit
        """Output tokens the scheduler may emit."""
        self.credit_advanced = 0
        """Of these, granted for tokens held back when the client's credit was used up; its next grants repay them."""
        self._text = text
        self._spell = spell
        self._logprobs: list[TokenLogprob] = []
        num_logprobs = 0 if submit.sampling.logprobs is None else 1 + submit.sampling.logprobs
        self._token_bytes = TOKEN_BYTES + LOGPROB_BYTES * num_logprobs
        self._num_sent = 0
        self._num_ready = 0
        self._num_carried = 0
        """Resumed tokens whose text is not complete: the client holds them, their text comes with the next token."""
        self._carried_text = ""
        self._ready: list[Piece] = []
        self._accepted: Accepted | None = None
        self._terminal: Finished | Failed | None = None
        self._on_dirty: Callable[[Stream], None] | None = None
        self.is_dirty = False
        """There is something to take, and whoever listens knows."""
        if submit.output_tokens:
            self._resume(submit.output_tokens)

    @property
    def has_ended(self) -> bool:
        """The terminal event is known (it may not have been taken)."""
        return self._terminal is not None

    @property
    def backlog_bytes(self) -> int:
        """About what occupies memory until it is taken."""
        return (len(self.tokens) - self._num_sent) * self._token_bytes

    @property
    def credit_missing(self) -> int:
        """Held-back tokens have used up the credit of a client that cannot have seen them: what to grant in its stead.

        Without it a window smaller than a character's tokens, or than what a stop string holds back, never moves again.
        """
        if len(self.tokens) < self.credit_length:
            return 0
        return max(0, len(self.tokens) - self._num_ready - self.credit_advanced)

    @property
    def credit_repayable(self) -> int:
        """What was granted in the client's stead for tokens that are not held back any more."""
        return max(0, self.credit_advanced - (len(self.tokens) - self._num_ready))

    def listen(self, on_dirty: "Callable[[Stream], None] | None") -> None:
        """`on_dirty` is called when there is something to take, once until it is taken; None: nobody listens."""
        self._on_dirty = on_dirty
        self.is_dirty = False
        if self._accepted is not None or self._terminal is not None:
            self._mark()

    def accept(self) -> None:
        """The scheduler has queued it."""
        self.is_accepted = True
        self._accepted = Accepted(id=self.client_id, prompt_tokens=len(self.submit.prompt_tokens))
        self._mark()

    def push(self, delta: TokenDelta) -> bool:
        """Take the output tokens of one step; True when they end with a stop string. Raises PartFailed for a gap."""
        if self.stop is not None or self._terminal is not None:
            return False
        known = len(self.tokens)
        if delta.index != known:
            delta = _unknown_part(delta, known)
        self.tokens.extend(delta.tokens)
        self._logprobs += delta.logprobs
        self._take(self._text.push(delta.tokens))
        return self.stop is not None

    def finish(self, message: RequestFinished) -> None:
        """Take the terminal event of a request that was served."""
        if self.stop is None:
            self._take(self._text.finish())
        usage, reason = message.usage, message.reason
        stop: str | int | None = message.stop_token
        if self.stop is not None:  # the scheduler may have gone on for a step or two
            usage = Usage(usage.prompt_tokens, usage.cached_tokens, self._num_ready)
            reason, stop = "stop", self.stop
        self.end(Finished(id=self.client_id, reason=reason, usage=usage, timing=message.timing, stop=stop))

    def fail(self, message: RequestFailed) -> None:
        """Take the terminal event of a request that cannot be served."""
        self.end(failed_event(self.client_id, message))

    def end(self, event: Finished | Failed) -> None:
        """Nothing comes after this."""
        self._terminal = event
        self._mark()

    def take_events(self) -> list[SessionEvent]:
        """What is to be sent next, in order; at most one Tokens. Take again while `is_dirty`."""
        events: list[SessionEvent] = []
        if self._accepted is not None:
            events.append(self._accepted)
            self._accepted = None
        if self._ready:
            events.append(self._take_tokens())
        self.is_dirty = bool(self._ready)
        if self._terminal is not None and not self.is_dirty:
            events.append(self._terminal)
        return events

    def _resume(self, tokens: list[int]) -> None:
        """The client holds these already: their text is not sent again."""
        self.tokens.extend(tokens)
        piece = self._text.push(tokens)
        if piece is not None:
            self._num_ready = piece.num_tokens
            self.stop = piece.stop
        self._num_sent = len(tokens)
        self._num_carried = len(tokens) - self._num_ready

    def _take(self, piece: Piece | None) -> None:
        if piece is None:
            return
        self._num_ready += piece.num_tokens
        self.stop = piece.stop
        if self._num_carried or self._carried_text:
            piece = self._uncarried(piece)
        if piece.num_tokens:
            self._ready.append(piece)
            self._mark()

    def _uncarried(self, piece: Piece) -> Piece:
        """The same text, without the tokens that the client holds; text of these alone waits, as no frame is empty."""
        num_known = min(self._num_carried, piece.num_tokens)
        self._num_carried -= num_known
        text, self._carried_text = self._carried_text + piece.text, ""
        if num_known == piece.num_tokens:
            self._carried_text = text
        return Piece(piece.num_tokens - num_known, text, piece.stop)

    def _take_tokens(self) -> Tokens:
        start = self._num_sent
        count, text = self._take_pieces()
        end = self._num_sent = start + count
        return Tokens(
            id=self.client_id,
            index=start,
            count=count,
            text=text,
            tokens=self.tokens[start:end].tolist() if self.return_tokens else None,
            logprobs=self._take_logprobs(count) if self._logprobs else None,
        )

    def _take_pieces(self) -> tuple[int, str]:
        """As many as fit into one frame, one at least: their tokens and text."""
        ready = self._ready
        if len(ready) == 1:
            piece = ready.pop()
            return piece.num_tokens, piece.text
        count, taken = 0, 0
        for piece in ready:
            if taken and count + piece.num_tokens > MAX_FRAME_TOKENS:
                break
            count += piece.num_tokens
            taken += 1
        text = "".join([piece.text for piece in ready[:taken]])
        del ready[:taken]
        return count, text

    def _take_logprobs(self, count: int) -> list[WireLogprob]:
        taken, self._logprobs = self._logprobs[:count], self._logprobs[count:]
        return [self._wire_logprob(one) for one in taken]

    def _wire_logprob(self, one: TokenLogprob) -> WireLogprob:
        spell = self._spell
        top = [WireTopLogprob(token=other.token, logprob=other.logprob, text=spell(other.token)) for other in one.top]
        return WireLogprob(token=one.token, logprob=one.logprob, text=spell(one.token), top=top)

    def _mark(self) -> None:
        if not self.is_dirty and self._on_dirty is not None:
            self.is_dirty = True
            self._on_dirty(self)


def _unknown_part(delta: TokenDelta, known: int) -> TokenDelta:
    """What of `delta` is new to a stream that has `known` tokens."""
    if delta.index > known:
        raise PartFailed(f"request {delta.request}: token {delta.index} came, but {known} was next")
    skip = known - delta.index
    return TokenDelta(delta.request, known, delta.tokens[skip:], delta.logprobs[skip:])
