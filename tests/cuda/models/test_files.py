"""Broken model files are named before anything is started."""

import json
import struct
from pathlib import Path

import pytest

from cuda.models.files import check_files
from cuda.models.spec import UnsupportedModel


def weights(header: object, num_data_bytes: int) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(num_data_bytes)


HEADER = {"__metadata__": {"format": "pt"}, "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}


def folder_of(tmp_path: Path, weight_bytes: bytes, tokenizer: bytes | None = b"{}") -> Path:
    (tmp_path / "model.safetensors").write_bytes(weight_bytes)
    if tokenizer is not None:
        (tmp_path / "tokenizer.json").write_bytes(tokenizer)
    return tmp_path


def test_whole_files_are_fine(tmp_path: Path) -> None:
    check_files(folder_of(tmp_path, weights(HEADER, 8)))


@pytest.mark.parametrize(
    ("weight_bytes", "named"),
    [
        (b"", "cannot be read"),
        (b"\xff" * 100, "too large"),
        (weights(b"{", 0), "cannot be read"),
        (weights([], 0), "declares no tensors"),
        (weights({"a": {"shape": [1]}}, 0), "declares no tensors"),
        (weights(HEADER, 7), "fetch it again"),
        (weights(HEADER, 9), "fetch it again"),
    ],
)
def test_broken_weights_are_refused_by_name(tmp_path: Path, weight_bytes: bytes, named: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"model.safetensors.*{named}") as refused:
        check_files(folder_of(tmp_path, weight_bytes))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("tokenizer", "named"), [(None, "missing"), (b"{", "cannot be read"), (b"[]", "no JSON object"), (b"\xff", "read")]
)
def test_a_folder_needs_a_readable_tokenizer(tmp_path: Path, tokenizer: bytes | None, named: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"tokenizer.json.*{named}"):
        check_files(folder_of(tmp_path, weights(HEADER, 8), tokenizer))
