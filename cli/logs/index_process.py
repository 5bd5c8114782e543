"""The process that writes the index beside ``foldmq serve``.

It runs only while there is something to index, with the lowest priority, and never outlives the
broker. Its start costs as much as thousands of records, so it is rare.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import TYPE_CHECKING, Self

import structlog

from cli.logs.index_writer import SEGMENT_RECORDS
from cli.settings.child_environment import environment_for
from cli.settings.setting_sources import PREFIX
from eventstore.server.process import end_process

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cli.settings.settings import Settings
    from eventstore.datadir import DataDir

log = structlog.get_logger("foldmq")

_LOOK_SECONDS = 10.0
_MANY_RECORDS, _RARELY_SECONDS = 16_384, 600.0
"""Number of new records from which the process is started, and seconds after the start of the
broker or the end of the process from which it is started for a single segment."""
_BACKOFF_SECONDS = (10.0, 600.0)
_STOP_SECONDS = 3.0


class IndexProcess:
    """Keeps the index up to date; an async context that ends the process."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._keeping: asyncio.Task[None] | None = None

    def start(self, settings: Settings, datadir: DataDir, last: Callable[[], int]) -> None:
        """Begin; ``last`` returns the sequence of the last record of the log."""
        if settings.index_bytes:
            environment = environment_for(settings, datadir)
            environment[f"{PREFIX}INDEX_BYTES"] = str(settings.index_bytes)
            self._keeping = asyncio.create_task(self._keep(datadir, environment, last))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeping
        await end_process(self._process, _STOP_SECONDS)

    async def _keep(
        self, datadir: DataDir, environment: Mapping[str, str], last: Callable[[], int]
    ) -> None:
        """Start the process whenever there are many records, or rarely, enough for a segment."""
        now = asyncio.get_running_loop().time
        indexed, delay, rested_from = 0, _BACKOFF_SECONDS[0], now()
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            rested = now() - rested_from >= _RARELY_SECONDS
            if last() - indexed < (SEGMENT_RECORDS if rested else _MANY_RECORDS):
                continue
            try:
                self._process = await _launch(datadir, environment)
                code = await self._process.wait()
                why = f"exit {code}" if code >= 0 else f"signal {-code}"
            except OSError as error:
                code, why = 1, error.strerror or str(error)
            if not code:
                indexed, delay, rested_from = last(), _BACKOFF_SECONDS[0], now()
                continue
            log.warning("the index of the log is not written", reason=why, again_after_s=delay)
            await asyncio.sleep(delay)
            delay = min(2 * delay, _BACKOFF_SECONDS[1])


async def _launch(datadir: DataDir, environment: Mapping[str, str]) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        # Files in the working directory must not be imported as modules.
        *("-P", "-m", "foldmq", "log", "index", "--data-dir", str(datadir.path), "--child"),
        env=environment,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        # Ctrl-C reaches the whole process group, but the broker ends this process.
        start_new_session=True,
    )
