"""Broken model files are named before anything is started, and rows of whole ones are read."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from cuda.models.files import check_files, sample_rows
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


NAME = "model.layers.1.mlp.gate_proj.weight"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_rows_are_those_of_the_file(tmp_path: Path, dtype: torch.dtype) -> None:
    weight = torch.randn(12, 40).to(dtype)
    save_file({"a": torch.zeros(3), NAME: weight, "z": torch.zeros(5)}, tmp_path / "model.safetensors")
    rows = sample_rows(tmp_path, 7 * 40 + 39)
    assert rows.dtype == np.float32
    np.testing.assert_array_equal(rows, weight[:7].float().numpy())
    np.testing.assert_array_equal(sample_rows(tmp_path, 1 << 20), weight.float().numpy())
    assert sample_rows(tmp_path, 1).shape == (1, 40)


def test_the_matrix_may_be_in_any_file(tmp_path: Path) -> None:
    save_file({"model.norm.weight": torch.zeros(3)}, tmp_path / "model-1.safetensors")
    save_file({NAME: torch.ones(2, 3)}, tmp_path / "model-2.safetensors")
    assert sample_rows(tmp_path, 6).tolist() == [[1, 1, 1], [1, 1, 1]]


def test_a_folder_without_one_is_refused(tmp_path: Path) -> None:
    save_file({"model.norm.weight": torch.zeros(3)}, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedModel, match="no tensor"):
        sample_rows(tmp_path, 6)
