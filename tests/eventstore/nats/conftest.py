from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

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


@pytest.fixture
def start(tmp_path: Path, servers: list[Nats]) -> Callable[..., Awaitable[Nats]]:
    """Starts a server with some settings."""

    async def started(**settings: Any) -> Nats:
        servers.append(Nats(tmp_path, **settings))
        await servers[-1].start()
        return servers[-1]

    return started


@pytest_asyncio.fixture(autouse=True)
async def _links_end() -> AsyncIterator[None]:
    yield
    for linked in Linked.opened:
        if linked.link._open:
            await linked.link.close()
    Linked.opened.clear()
