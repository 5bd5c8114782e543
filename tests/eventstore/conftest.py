from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from eventstore.datadir import DataDir
from eventstore.server.embedded_server import EmbeddedServer


@pytest.fixture
def datadir(tmp_path: Path) -> Iterator[DataDir]:
    with DataDir(tmp_path / "data") as data:
        yield data


@pytest_asyncio.fixture
async def server(datadir: DataDir) -> AsyncIterator[EmbeddedServer]:
    embedded = EmbeddedServer(datadir)
    await embedded.start()
    yield embedded
    await embedded.stop()
