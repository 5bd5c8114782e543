"""What worlds with personal topics share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from actors.inspection import erasure
from eventstore.format.records import Record
from simulation.world import Disk


class OpenDisk(Disk):
    """The records on disk, opened with the keys that exist."""

    def __init__(self, stream: Any, key: Callable[[int], bytes | None]) -> None:
        super().__init__(stream)
        self._key = key

    def decoded(self) -> list[Record]:
        found = super().decoded()
        for record in found:
            record.open(self._key)
        return found


@pytest.fixture(autouse=True)
def without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Destroy keys in the simulated process itself: its time is virtual."""

    async def here(work: Any, *arguments: Any) -> Any:
        return work(*arguments)

    monkeypatch.setattr(erasure, "in_thread", here)
