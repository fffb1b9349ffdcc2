from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from websockets.asyncio.client import ClientConnection

from actors.ingress.config import IngressConfig
from actors.runtime.clock import RealClock
from protocol.model_info import ModelInfo
from tests.actors.ingress.byte_model import write_byte_model
from tests.actors.ingress.scripted import ScriptedScheduler, Served, hear, served


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelInfo:
    folder: Path = tmp_path_factory.mktemp("bytes")
    return write_byte_model(folder)


@pytest.fixture
async def server(model: ModelInfo) -> AsyncIterator[Served]:
    async with served(model, IngressConfig(close_timeout_s=0.5), RealClock()) as running:
        yield running


@pytest.fixture
def scheduler(server: Served) -> ScriptedScheduler:
    return server.scheduler


@pytest.fixture
async def client(server: Served) -> AsyncIterator[ClientConnection]:
    """Connected, hello read."""
    async with server.connect() as connection:
        assert (await hear(connection))["type"] == "hello"
        yield connection
