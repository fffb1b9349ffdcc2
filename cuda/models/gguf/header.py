"""The header of a GGUF file: its metadata and where its tensors lie, read in one pass without NumPy objects per string.

Owns the bounds checks: a cut, corrupt or hostile file ends in UnsupportedModel. Reads no tensor data.
Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Read `cuda.models.gguf.convert` next.
"""

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from cuda.models.spec import UnsupportedModel

_LETTERS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_SCALARS: Final[Mapping[int, struct.Struct]] = {kind: struct.Struct(f"<{letter}") for kind, letter in _LETTERS.items()}
_STRING: Final = 8
_ARRAY: Final = 9
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")
_MAX_DIMENSIONS: Final = 4


@dataclass(frozen=True)
class GgufTensor:
    """One tensor: `shape` in row-major order, its encoding, and its bytes' place in the file."""

    name: str
    shape: tuple[int, ...]
    encoding: GGMLQuantizationType
    offset: int
    num_bytes: int


@dataclass(frozen=True)
class GgufHeader:
    """Metadata values are int, float, bool, str, or lists of one of them."""

    metadata: Mapping[str, object]
    tensors: Mapping[str, GgufTensor]


def read_header(path: Path) -> GgufHeader:
    """Return the header of the file; UnsupportedModel when it is none, or is cut short or corrupt."""
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise UnsupportedModel(f"{path} is not a GGUF file")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _Reader(data).header()
            except (struct.error, UnicodeDecodeError, ValueError) as error:
                raise UnsupportedModel(f"{path} is cut short or corrupt: {error}") from error


class _Reader:
    """A cursor over the mapped file."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._position = 4

    def header(self) -> GgufHeader:
        version = self._code()
        if version not in (2, 3):
            raise ValueError(f"version {version:#x} (supported are 2 and 3, little-endian)")
        num_tensors, num_entries = self._count(), self._count()
        metadata: dict[str, object] = {}
        for _ in range(num_entries):
            key = self._string()
            if key in metadata:
                raise ValueError(f"two values for {key}")
            metadata[key] = self._value(self._code())
        places = [self._tensor_place() for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
            raise ValueError(f"general.alignment is {alignment!r:.40}")
        start = -(-self._position // alignment) * alignment
        tensors: dict[str, GgufTensor] = {}
        for name, shape, encoding, offset in places:
            if name in tensors:
                raise ValueError(f"two tensors named {name}")
            tensors[name] = self._tensor(name, shape, encoding, start + offset)
        return GgufHeader(metadata, tensors)

    def _tensor_place(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        num_dimensions = self._code()
        if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
            raise ValueError(f"tensor {name} has {num_dimensions} dimensions")
        shape = tuple(self._count() for _ in range(num_dimensions))
        if 0 in shape:
            raise ValueError(f"tensor {name} is empty")
        return name, shape[::-1], self._code(), self._count()

    def _tensor(self, name: str, shape: tuple[int, ...], code: int, offset: int) -> GgufTensor:
        encoding = GGMLQuantizationType(code)
        block_size, block_bytes = GGML_QUANT_SIZES[encoding]
        if shape[-1] % block_size:
            raise ValueError(f"tensor {name} has rows of {shape[-1]} values, not a multiple of {block_size}")
        num_bytes = math.prod(shape) // block_size * block_bytes
        if offset + num_bytes > len(self._data):
            raise ValueError(f"tensor {name} ends at byte {offset + num_bytes} of {len(self._data)}")
        return GgufTensor(name, shape, encoding, offset, num_bytes)

    def _value(self, kind: int) -> object:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array()
        return self._take(_scalar(kind))

    def _array(self) -> list[object]:
        kind, length = self._code(), self._count()
        if kind == _ARRAY:
            raise ValueError("an array of arrays")
        least_bytes = 8 if kind == _STRING else _scalar(kind).size
        if length * least_bytes > len(self._data) - self._position:
            raise ValueError(f"an array of {length} values")
        if kind == _STRING:
            return [self._string() for _ in range(length)]
        values = struct.unpack_from(f"<{length}{_scalar(kind).format[1:]}", self._data, self._position)
        self._position += length * least_bytes
        return list(values)

    def _string(self) -> str:
        start = self._position + 8
        end = start + self._count()
        if end > len(self._data):
            raise ValueError(f"a string of {end - start} bytes")
        self._position = end
        return self._data[start:end].decode()

    def _count(self) -> int:
        return int(self._take(_U64))

    def _code(self) -> int:
        return int(self._take(_U32))

    def _take(self, layout: struct.Struct) -> float:
        value: float
        (value,) = layout.unpack_from(self._data, self._position)
        self._position += layout.size
        return value


def _scalar(kind: int) -> struct.Struct:
    if kind not in _SCALARS:
        raise ValueError(f"value type {kind}")
    return _SCALARS[kind]
