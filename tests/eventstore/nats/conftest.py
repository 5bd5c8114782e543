from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from linked import Nats


@pytest.fixture
def servers() -> Iterator[list[Nats]]:
    started: list[Nats] = []
    yield started
    for server in started:
        server.kill()
