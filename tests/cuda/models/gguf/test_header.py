"""The header reader against the `gguf` package's, and under cut and scrambled files."""

import mmap
import random
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from cuda.models.gguf.header import GgufHeader, read_header
from cuda.models.spec import UnsupportedModel
from tests.cuda.models.tiny_gguf import Q, tiny_gguf


def test_the_demos_header_is_what_the_gguf_package_reads(demo_file: Path, demo_reader: gguf.GGUFReader) -> None:
    assert_same(read_header(demo_file), demo_reader)


@pytest.mark.parametrize("encoding", [Q.F32, Q.F16, Q.Q8_0, Q.Q4_0])
def test_every_kind_of_value_is_read(encoding: Q, tmp_path: Path) -> None:
    metadata = {"a.flag": True, "a.float": 0.25, "a.text": "Grüße 😀", "a.floats": [0.5, -1.0], "a.whole": [-1, 7]}
    path = tiny_gguf(tmp_path, encoding=encoding, metadata=metadata)
    header = read_header(path)
    assert {key: header.metadata[key] for key in metadata} == metadata
    assert_same(header, gguf.GGUFReader(path))


def test_wide_scalars_are_read(tmp_path: Path) -> None:
    path = tmp_path / "wide.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint64("u64", 2**63)
    writer.add_int64("i64", -(2**62))
    writer.add_float64("f64", 0.1)
    writer.add_int8("i8", -8)
    writer.add_uint16("u16", 65535)
    writer.add_tensor("one", np.ones((2, 3), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    metadata = read_header(path).metadata
    assert [metadata[key] for key in ("u64", "i64", "f64", "i8", "u16")] == [2**63, -(2**62), 0.1, -8, 65535]


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"", "is not a GGUF file"),
        (b"GGU", "is not a GGUF file"),
        (b"not a gguf file at all", "is not a GGUF file"),
        (b"GGUF", "is cut short or corrupt"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 0x1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "version 0x3000000 (supported are 2 and 3, little-endian)"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60), "is cut short or corrupt"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), "is cut short or corrupt"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2**63), "a string of"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q1sI", 1, b"k", 99), "value type 99"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q1sIIQ", 1, b"k", 9, 4, 2**60), "an array of"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q1sIIQ", 1, b"k", 9, 9, 1), "an array of arrays"),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q1sIQ1s", 1, b"k", 8, 1, b"\xff"),
            "codec can't decode",
        ),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + 2 * struct.pack("<Q1sIB", 1, b"k", 0, 1), "two values for k"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + struct.pack("<Q1sI", 1, b"t", 9), "tensor t has 9 dimensions"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + struct.pack("<Q1sIQIQ", 1, b"t", 1, 0, 0, 0), "tensor t is empty"),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + struct.pack("<Q1sIQIQ", 1, b"t", 1, 31, 2, 0),
            "not a multiple of 32",
        ),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + struct.pack("<Q1sIQIQ", 1, b"t", 1, 2**40, 0, 0), "tensor t ends at"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + struct.pack("<Q1sIQIQ", 1, b"t", 1, 1, 999, 0), "999 is not a valid"),
    ],
)
def test_a_broken_header_is_refused_with_what_is_wrong(data: bytes, named: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(data)
    with pytest.raises(UnsupportedModel) as refused:
        read_header(path)
    assert named in str(refused.value)
    assert str(path) in str(refused.value)


def test_cut_and_scrambled_files_end_in_the_documented_error_or_are_read(tmp_path: Path) -> None:
    whole = tiny_gguf(tmp_path, encoding=Q.Q8_0).read_bytes()
    path = tmp_path / "damaged.gguf"
    draw = random.Random(7)
    header_bytes = whole.index(b"output_norm.weight")
    refused = 0
    for _ in range(400):
        data = bytearray(whole[: draw.randrange(1, len(whole))] if draw.random() < 0.3 else whole)
        for _ in range(draw.randrange(1, 4)):
            data[draw.randrange(min(header_bytes, len(data)))] = draw.randrange(256)
        path.write_bytes(data)
        try:
            read_header(path)
        except UnsupportedModel:
            refused += 1
    assert refused > 100


def assert_same(header: GgufHeader, reader: gguf.GGUFReader) -> None:
    fields = {key: field for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert header.metadata.keys() == fields.keys()
    for key, field in fields.items():
        assert header.metadata[key] == field.contents(), key
    assert list(header.tensors) == [tensor.name for tensor in reader.tensors]
    for tensor in reader.tensors:
        own = header.tensors[tensor.name]
        assert own.shape == tuple(reversed(tensor.shape.tolist()))
        assert (own.encoding, own.offset, own.num_bytes) == (tensor.tensor_type, tensor.data_offset, tensor.n_bytes)


def test_the_mapping_is_released(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path)
    read_header(path)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        data[:4] = b"LLMS"
    with pytest.raises(UnsupportedModel, match="is not a GGUF file"):
        read_header(path)
