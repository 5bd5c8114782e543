"""The differences between the broker's states at two moments, folded in the background.

The log is folded from its beginning, as ``foldmq diff`` does. The records, the sessions and the
retained messages of such a fold are limited here; the command has no limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from cli.common import count_of
from cli.history import diff_lines
from eventstore.errors import UsageError
from eventstore.reading import LogPoint
from projections.comparison import state_facts
from projections.replay import Replay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cli.web.live import WebLogClient
    from eventstore.reading import LogSource, Progress
    from projections.comparison import StateFacts

MOST_RECORDS: Final = 200_000
MOST_ITEMS: Final = 20_000
"""Maximum sessions and retained messages of a compared state."""
MOST_LINES: Final = 500
_KEPT: Final = 8
_PATIENCE: Final = 30.0
"""Seconds after the last request until folding is cancelled."""


@dataclass(frozen=True, slots=True)
class FoldingStates:
    """The states are not folded yet."""

    done: int
    of: int
    """Records."""


@dataclass(slots=True)
class _Running:
    task: asyncio.Task[list[str]]
    progress: FoldingStates
    asked: float


class _WantedDiff(NamedTuple):
    """A difference: between the states of a log after two records."""

    epoch: int
    log: str
    """Its name; empty: the only one."""
    before: int
    after: int

    @property
    def command(self) -> str:
        """The command that shows it without a limit, as text."""
        node = f" --node {self.log}" if self.log else ""
        return f"foldmq diff --from {self.before} --to {self.after}{node} has no limit"


class StateDiffs:
    """Differences by log and moments; one is folded at a time.

    The least recently used are dropped.
    """

    def __init__(self, link: WebLogClient) -> None:
        self._link = link
        self._found: OrderedDict[_WantedDiff, list[str]] = OrderedDict()
        self._running: dict[_WantedDiff, _Running] = {}
        self._one = asyncio.Semaphore()

    async def find(
        self, before: int, after: int, patience: float, log: str = ""
    ) -> list[str] | FoldingStates:
        """Return the differences between the states after two records of a log, as lines.

        After ``patience`` seconds, returns the progress instead; folding continues. Raises
        UsageError beyond the limits, CutOff, NoLiveBroker, and the errors of reading the log.
        """
        key = _WantedDiff(self._link.epoch, log, before, after)
        found = self._found.get(key)
        if found is not None:
            self._found.move_to_end(key)
            return found
        held = self._running.get(key)
        if held is None:
            progress = FoldingStates(0, after)
            task = asyncio.create_task(self._fold(key))
            held = self._running[key] = _Running(task, progress, time.monotonic())
        held.asked = time.monotonic()
        await asyncio.wait({held.task}, timeout=patience)
        if not held.task.done():
            return held.progress
        self._running.pop(key, None)
        if held.task.cancelled():  # no request for some time
            return held.progress
        lines = self._found[key] = held.task.result()
        while len(self._found) > _KEPT:
            self._found.popitem(last=False)
        return lines

    def close(self) -> None:
        """Cancel all folding."""
        for held in self._running.values():
            held.task.cancel()

    async def _fold(self, key: _WantedDiff) -> list[str]:
        async with self._one, self._link.log(key.log) as source:
            records = key.after - source.begin + 1
            if records > MOST_RECORDS:
                raise UsageError(
                    f"the states of two moments are folded here from at most "
                    f"{MOST_RECORDS:,} records, and these need {records:,}: "
                    f"{key.command}"
                )
            return await self._lines(source, key)

    async def _lines(self, source: LogSource, key: _WantedDiff) -> list[str]:
        replay = Replay(source, key.after, progress=self._progress(key))
        from_moment = await replay.to(LogPoint(key.before))
        old = _facts(replay, key)
        to_moment = await replay.to(LogPoint(key.after))
        new = _facts(replay, key)
        lines = list(islice(diff_lines(old, new, from_moment, to_moment), MOST_LINES + 1))
        if len(lines) > MOST_LINES:
            lines[-1] = f"and more than {count_of(MOST_LINES, 'line')}: {key.command}"
        return lines

    def _progress(self, key: _WantedDiff) -> Progress:
        @contextlib.contextmanager
        def shown(_what: str, _total: int, _unit: str = "", /) -> Iterator[Callable[[int], None]]:
            yield update

        def update(sequence: int) -> None:
            held = self._running[key]
            held.progress = FoldingStates(sequence, key.after)
            if time.monotonic() - held.asked > _PATIENCE:
                held.task.cancel()

        return shown


def _facts(replay: Replay, key: _WantedDiff) -> StateFacts:
    state = replay.state
    if len(state.sessions) > MOST_ITEMS or len(state.retained) > MOST_ITEMS:
        raise UsageError(
            f"more than {MOST_ITEMS:,} sessions or retained messages are not compared here: "
            f"{key.command}"
        )
    return state_facts(state, None, replay.origins)
