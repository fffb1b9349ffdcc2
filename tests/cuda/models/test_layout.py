"""The list of tensors against what transformers' own modules hold."""

from pathlib import Path

import pytest

from cuda.models.folder import read_spec
from cuda.models.layout import check_shapes, expected_shapes
from cuda.models.spec import UnsupportedModel
from tests.cuda.models.tiny import VARIANTS, Variant, reference_model, tiny_model


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_family_has_the_parameters_of_its_module(variant: Variant, tmp_path: Path) -> None:
    folder = tiny_model(tmp_path, variant)
    parameters = {name: tuple(value.shape) for name, value in reference_model(folder).named_parameters()}
    assert expected_shapes(read_spec(folder)) == parameters


def test_a_head_beside_a_tied_embedding_is_let_be() -> None:
    check_shapes({"a": (2, 3), "lm_head.weight": (9, 9), "b.rotary_emb.inv_freq": (1,)}, {"a": (2, 3)}, "here")


@pytest.mark.parametrize(
    ("found", "named"),
    [
        ({}, r"here: tensor a \[2, 3\] is missing"),
        ({"a": (3, 2)}, r"here: tensor a is \[3, 2\]; its config says \[2, 3\]"),
        ({"a": (2, 3), "b": (1,)}, r"here: tensor b \[1\] is not part of this decoder"),
    ],
)
def test_the_first_wrong_tensor_is_named(found: dict[str, tuple[int, ...]], named: str) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        check_shapes(found, {"a": (2, 3)}, "here")
