"""The differences between the broker's states at two moments, found in the background.

Only sessions that changed between the moments are compared. The records that are read because they
are not indexed are limited; ``foldmq diff`` has no limit.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from cli.common import text
from cli.logs.next_commands import completed
from cli.web.background_fold import BackgroundWork, Folding, Pause
from cli.web.web_log_client import WebLogClient
from eventstore.display import count_of
from eventstore.errors import UsageError
from eventstore.reading.indexed_reading import asked_of
from eventstore.reading.log_source import LogSource
from projections.past.changed_states import ChangedStates
from projections.views.differences import ChangedSession

MAX_RECORDS: Final = 1_000_000
"""Maximum records that are not indexed, or that are read for the retained messages."""
MAX_LINES: Final = 500
_KEPT: Final = 8
_KINDS: Final = {"+": "added", "-": "removed", "~": "changed", "*": "set"}


@dataclass(slots=True)
class StateDiff:
    """The differences between two states, as text."""

    command: str
    """The command that shows all of them."""
    lines: list[str] = field(default_factory=list)
    """The first ones."""
    notes: list[str] = field(default_factory=list)
    """A note about omitted differences."""
    _counted: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def totals(self) -> list[str]:
        """The number of differences of each kind."""
        sentences = []
        for what in ("session", "retained message"):
            kinds = {mark: self._counted[what, mark] for mark in _KINDS}
            parts = [f"{count:,} {_KINDS[mark]}" for mark, count in kinds.items() if count]
            if parts:
                sentences.append(f"{what}s: {', '.join(parts)}")
        return sentences

    def session(self, change: ChangedSession) -> None:
        """Add a session that differs."""
        self._add("session", change.mark, change.lines())

    def retained(self, mark: str, line: str) -> None:
        """Add a retained message that differs."""
        self._add("retained message", mark, [line])

    def finish(self) -> StateDiff:
        """Record whether lines were left out."""
        if len(self.lines) > MAX_LINES:
            del self.lines[MAX_LINES:]
            self.notes.append(f"more than {count_of(MAX_LINES, 'line')}: {self.command}")
        return self

    def _add(self, what: str, mark: str, lines: Iterable[str]) -> None:
        self._counted[what, mark] += 1
        if len(self.lines) <= MAX_LINES:
            self.lines += lines


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
        return completed(f"foldmq diff {self.before} {self.after}{node}") + " shows all"


class StateDiffs:
    """Differences by log and moments; one is computed at a time.

    The least recently used are dropped.
    """

    def __init__(self, link: WebLogClient) -> None:
        self._link = link
        self._found: OrderedDict[_WantedDiff, StateDiff] = OrderedDict()
        self._work = BackgroundWork[StateDiff]()

    async def find(
        self, before: int, after: int, max_wait: float, log: str = ""
    ) -> StateDiff | Folding:
        """Return the differences between the states after two records of a log.

        After ``max_wait`` seconds, returns the progress instead; the work continues. Raises
        UsageError beyond the limits, CutOff, NoLiveBroker, and the errors of reading the log.
        """
        key = _WantedDiff(self._link.epoch, log, before, after)
        cached = self._found.get(key)
        if cached is not None:
            self._found.move_to_end(key)
            return cached

        async def work(pause: Pause) -> StateDiff:
            async with self._link.log(log) as source:
                return await asked_of(source, lambda indexed: _differences(indexed, key, pause))

        result = await self._work.result(key, after, max_wait, work)
        if isinstance(result, Folding):
            return result
        self._found[key] = result
        while len(self._found) > _KEPT:
            self._found.popitem(last=False)
        return result

    def close(self) -> None:
        """Cancel all work."""
        self._work.close()


async def _differences(source: LogSource, key: _WantedDiff, pause: Pause) -> StateDiff:
    if key.after - source.index.last > MAX_RECORDS:
        raise UsageError(
            "without an index that covers both moments, their states are folded here from at "
            f"most {MAX_RECORDS:,} records, and these need {key.after - source.begin + 1:,}: "
            f"{key.command}"
        )
    of = 0

    async def note() -> None:
        await pause(min(changes.done, of), of)

    changes = ChangedStates(source, key.before, key.after, note)
    diff = StateDiff(key.command)
    names = await changes.names()
    of = len(names)
    async for session in changes.sessions(names):
        diff.session(session)
    of = key.after - key.before
    if of > MAX_RECORDS:
        diff.notes.append(
            f"retained messages are compared here if at most {MAX_RECORDS:,} records lie "
            f"between the moments: {key.command}"
        )
        return diff.finish()
    for topic, size in sorted((await changes.retained()).items()):
        named = f"retained {text.name(topic)}"
        if size is None:
            diff.retained("-", f"- {named}, removed between the moments")
        else:
            diff.retained("*", f"* {named}, {text.size(size)}, set between the moments")
    return diff.finish()
