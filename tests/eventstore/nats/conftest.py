from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from linked import Linked, Nats, Network


@pytest.fixture
def servers() -> Iterator[list[Nats]]:
    started: list[Nats] = []
    yield started
    for server in started:
        server.kill()


@pytest_asyncio.fixture
async def network(tmp_path: Path) -> AsyncIterator[Network]:
    made = Network(tmp_path)
    yield made
    await made.close()


@pytest_asyncio.fixture
async def nats(network: Network) -> Nats:
    return await network.server()


@pytest_asyncio.fixture
async def here(network: Network, nats: Nats) -> Linked:
    return await network.link(nats.url)


@pytest_asyncio.fixture
async def there(network: Network, nats: Nats) -> Linked:
    return await network.link(nats.url)
