from pathlib import Path

import pytest

from actors.ingress.text import TextModel
from cuda.models.folder import prepare_model
from tests.actors.ingress.text.model_folders import DECODERS, byte_level_folder, sentence_piece_folder


@pytest.fixture(scope="session")
def demo() -> TextModel:
    return TextModel.load(prepare_model("demo"))


@pytest.fixture(scope="session")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> TextModel:
    return TextModel.load(byte_level_folder(tmp_path_factory.mktemp("byte_level")))


@pytest.fixture(scope="session", params=["byte_level", *DECODERS])
def any_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TextModel:
    folder: Path = tmp_path_factory.mktemp(request.param)
    if request.param == "byte_level":
        return TextModel.load(byte_level_folder(folder))
    return TextModel.load(sentence_piece_folder(folder, request.param))
