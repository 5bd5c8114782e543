"""When the broker starts the process that writes the index of its log."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cli.logs import index_process
from cli.logs.index_process import IndexProcess, LogGrowth
from eventstore.errors import LogUnavailable

MIB = 1024 * 1024
LOOKS = 5


class FakeProcess(IndexProcess):
    """Counts its starts instead; they succeed."""

    def __init__(self) -> None:
        super().__init__()
        self.starts = 0

    async def _run(self, _arguments: Sequence[str], _environment: Mapping[str, str]) -> str:
        self.starts += 1
        return "exit 0"

    async def look(self, records: int, *, written: int, size: int | None) -> int:
        """Look at a log that does not grow; return how often the process was started."""
        enough, looks = asyncio.Event(), 0

        async def log_size() -> int:
            if size is None:
                raise LogUnavailable("no answer")
            return size

        def last() -> int:
            nonlocal looks
            looks += 1
            if looks > LOOKS:
                enough.set()
            return records

        datadir = cast("Any", SimpleNamespace(path=Path("nowhere")))
        growth = LogGrowth(last, lambda: written, log_size)
        keeping = asyncio.create_task(self._keep(datadir, {}, growth))
        await enough.wait()
        keeping.cancel()
        return self.starts


@pytest.mark.parametrize(
    ("records", "size", "starts"),
    [(640, 34 * MIB, 1), (20_000, MIB, 1), (640, MIB, 0), (640, None, 0)],
)
def test_it_is_started_for_many_records_or_large_ones(
    monkeypatch: pytest.MonkeyPatch, records: int, size: int | None, starts: int
) -> None:
    """A million small messages that came at once are a few hundred records."""
    monkeypatch.setattr(index_process, "_LOOK_SECONDS", 0.0)
    looking = FakeProcess().look(records, written=0, size=size)
    assert asyncio.run(looking) == starts
