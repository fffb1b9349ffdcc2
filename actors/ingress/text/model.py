"""The text side of a served model: encode a prompt or a chat, decode tokens, open an incremental stream.

Owns the tokenizer and the chat template, read once from the model folder; never changed after, so every thread may
use one TextModel at once (long texts are encoded without the GIL). Read `output` next.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from actors.ingress.text.chat import ChatTemplate
from actors.ingress.text.decoding import TokenStream, decoder_of
from protocol.errors import RequestError
from protocol.wire import ChatMessage

LONG_CHARS = 16_384
"""`Tokenizer.encode` holds the GIL to its end, seconds for megabytes. Its batches do not, but run on threads shared by
all, where a short text would wait for long ones."""


class TextModel:
    """Made by `load`. What `transformers` gives for the same folder is right, spelled out at each method."""

    def __init__(
        self, tokenizer: Tokenizer, open_stream: Callable[[], TokenStream], template: ChatTemplate | None
    ) -> None:
        self.open_stream = open_stream
        """A fresh incremental decoder, for one request."""
        self._tokenizer = tokenizer
        self._template = template

    @classmethod
    def load(cls, folder: str | Path) -> "TextModel":
        """Read `tokenizer.json` and the chat template of a model folder.

        Raises FileNotFoundError without a tokenizer.json, ValueError for a tokenizer that cannot be read or decoded
        incrementally, or a template with a syntax error.
        """
        path = Path(folder) / "tokenizer.json"
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing: a model folder needs a tokenizer.json to serve text")
        document = path.read_bytes()
        try:
            tokenizer = Tokenizer.from_buffer(document)
        except ValueError as error:
            raise ValueError(f"{path} is not a tokenizer: {error}") from error
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return cls(tokenizer, decoder_of(tokenizer, document), ChatTemplate.load(Path(folder)))

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included; the model's own table may be padded beyond it."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:  # noqa: FBT001, FBT002 - transformers' name
        """Token ids of a plain prompt; with `add_special_tokens` a tokenizer that begins texts with BOS does so.

        Names of special tokens within the text become those tokens, as everywhere in the field.
        Raises RequestError for text that is no Unicode (lone surrogates).
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            message = f"text holds a lone surrogate at character {error.start}; it cannot be encoded"
            raise RequestError("invalid_request", message, param="prompt") from error
        if len(text) <= LONG_CHARS:
            return self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids

    def encode_chat(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Token ids of a conversation, up to where the assistant's answer begins.

        The rendered chat is encoded without the tokenizer's own special tokens (the template writes BOS itself). Names
        of special tokens within a message become those tokens, as with `transformers`: a client that passes on text of
        strangers strips them first. Raises RequestError (`messages`) if there is no template or it refuses.
        """
        if self._template is None:
            message = "the model has no chat template; send `prompt` or `prompt_tokens`"
            raise RequestError("invalid_request", message, param="messages")
        try:
            return self.encode(self._template.render(messages), add_special_tokens=False)
        except RequestError as error:
            raise RequestError(error.code, error.message, param="messages") from error

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of `tokens`: special tokens and ids outside the vocabulary are left out, broken UTF-8 is U+FFFD."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))
