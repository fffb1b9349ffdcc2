"""Integer and length bounds of every value on a wire: msgpack carries 64-bit integers, nothing here may use them all.

Each bound is a type: a struct field that uses it is checked while it is decoded.
"""

from typing import Annotated

from msgspec import Meta

MAX_INT31 = 2**31 - 1
MAX_SEED = 2**63 - 1
MAX_NAME_LENGTH = 128

TokenId = Annotated[int, Meta(ge=0, le=MAX_INT31)]
Count = Annotated[int, Meta(ge=0, le=MAX_INT31)]
PositiveCount = Annotated[int, Meta(ge=1, le=MAX_INT31)]
Sequence63 = Annotated[int, Meta(ge=0, le=MAX_SEED)]
Seed = Annotated[int, Meta(ge=0, le=MAX_SEED)]
RequestName = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_LENGTH)]
