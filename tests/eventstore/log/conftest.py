from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from numberedlog import client_of

from eventstore.log import log_writer
from eventstore.nats.direct_client import DirectClient
from eventstore.server.embedded_server import EmbeddedServer


@pytest.fixture(autouse=True)
def _frequent_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer looks for missing answers ten times as often: what it finds is the same."""
    monkeypatch.setattr(log_writer, "_WATCH_EVERY", 0.05)


@pytest_asyncio.fixture
async def nc(server: EmbeddedServer) -> AsyncIterator[DirectClient]:
    async with client_of(server) as client:
        yield client
