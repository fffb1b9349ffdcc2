from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from cuda.models.sample import sample_rows
from cuda.models.spec import UnsupportedModel

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
