"""Between text and tokens: chat template, tokenizer, incremental decoding, stop strings. Pure: no socket, no clock.

Read `model` first (one for each served model, shared by all threads), then `output` (one for each request).
"""

from actors.ingress.text.model import TextModel
from actors.ingress.text.output import OutputText, Piece

__all__ = ["OutputText", "Piece", "TextModel"]
