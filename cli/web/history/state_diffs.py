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
from typing import TYPE_CHECKING, Final

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


class StateDiffs:
    """Differences by moments; the least recently used are dropped, and one is folded at a time."""

    def __init__(self, link: WebLogClient) -> None:
        self._link = link
        self._found: OrderedDict[tuple[int, int, int], list[str]] = OrderedDict()
        self._running: dict[tuple[int, int, int], _Running] = {}
        self._one = asyncio.Semaphore()

    async def find(self, before: int, after: int, patience: float) -> list[str] | FoldingStates:
        """Return the differences between the states after two records, as lines.

        After ``patience`` seconds, returns the progress instead; folding continues. Raises
        UsageError beyond the limits, CutOff, NoLiveBroker, and the errors of reading the log.
        """
        key = (self._link.epoch, before, after)
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

    async def _fold(self, key: tuple[int, int, int]) -> list[str]:
        _, before, after = key
        async with self._one, self._link.log() as source:
            records = after - source.begin + 1
            if records > MOST_RECORDS:
                raise UsageError(
                    f"the states of two moments are folded here from at most "
                    f"{MOST_RECORDS:,} records, and these need {records:,}: "
                    f"{_command(before, after)}"
                )
            return await self._lines(source, key)

    async def _lines(self, source: LogSource, key: tuple[int, int, int]) -> list[str]:
        _, before, after = key
        replay = Replay(source, after, progress=self._progress(key))
        from_moment = await replay.to(LogPoint(before))
        old = _facts(replay, key)
        to_moment = await replay.to(LogPoint(after))
        new = _facts(replay, key)
        lines = list(islice(diff_lines(old, new, from_moment, to_moment), MOST_LINES + 1))
        if len(lines) > MOST_LINES:
            lines[-1] = f"and more than {count_of(MOST_LINES, 'line')}: {_command(before, after)}"
        return lines

    def _progress(self, key: tuple[int, int, int]) -> Progress:
        @contextlib.contextmanager
        def shown(_what: str, _total: int, _unit: str = "", /) -> Iterator[Callable[[int], None]]:
            yield update

        def update(sequence: int) -> None:
            held = self._running[key]
            held.progress = FoldingStates(sequence, key[2])
            if time.monotonic() - held.asked > _PATIENCE:
                held.task.cancel()

        return shown


def _facts(replay: Replay, key: tuple[int, int, int]) -> StateFacts:
    state = replay.state
    if len(state.sessions) > MOST_ITEMS or len(state.retained) > MOST_ITEMS:
        raise UsageError(
            f"more than {MOST_ITEMS:,} sessions or retained messages are not compared here: "
            f"{_command(key[1], key[2])}"
        )
    return state_facts(state, None, replay.origins)


def _command(before: int, after: int) -> str:
    return f"foldmq diff --from {before} --to {after} has no limit"
