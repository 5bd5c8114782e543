from collections.abc import Iterator

import pytest
from linked import Nats


@pytest.fixture
def servers() -> Iterator[list[Nats]]:
    started: list[Nats] = []
    yield started
    for server in started:
        server.kill()
