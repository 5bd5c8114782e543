"""The audit trail of the web page: logins, refusals and changed tokens as events in the log.

It cannot grow the log without limit. Equal accesses (same outcome, reason, token and network of the
address) form one *series*: the first is recorded immediately; those of the next ten minutes are
counted and recorded as one event. The number of concurrent series is limited; all others form one
series without an address.

If the broker cannot record, events are buffered up to a limit and recorded later. The log of the
process contains a line for each in any case.

The file of tokens is changed by ``foldmq web-token`` or by hand, even while neither page nor broker
runs. So the page compares it with the last recorded state, kept in a file of its own, and has each
difference recorded. That file contains name, role, expiry and hash of the tokens, not the tokens.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog

from actors.access.login_backoff import network
from cli.commands.bulk_change import operator_name
from cli.settings.setting_sources import ConfigError
from cli.users import line_files
from cli.web.tokens import BadTokens, Grant, ends, file_state, read
from eventstore.task_cancellation import end_tasks
from protocol.errors import FoldmqError

WINDOW: Final = 600.0
"""Duration of a series in seconds."""
MAX_SERIES: Final = 100
"""Maximum number of series with an address, for logins and for refusals."""
MAX_WAITING: Final = 1_000
"""Maximum number of buffered events; the oldest are dropped."""
LOGIN_TIMEOUT: Final = 2.0
"""Seconds that a login waits to be recorded."""
_AGAIN: Final = (1.0, 30.0)
_LONGEST_ADDRESS: Final = 100
_END_SECONDS: Final = 1.0

_FIELDS: Final = ("outcome", "address", "name", "role", "reason", "count", "first_ms")
_LINES: Final = {
    "login": "web page login",
    "refused": "web page login refused",
    "denied": "web page change denied",
}

log = structlog.get_logger("foldmq")


@dataclass(slots=True)
class Entry:
    """An access; its fields are those of ``WebAccessed``."""

    outcome: str
    address: str
    name: str
    role: str
    reason: str
    first_ms: int
    count: int = 1
    recorded: asyncio.Event = field(default_factory=asyncio.Event)

    def values(self) -> dict[str, str | int]:
        """Return the fields of the event as JSON."""
        return {name: getattr(self, name) for name in _FIELDS}

    async def record(self, record: Callable[..., Awaitable[object]], **more: str) -> None:
        """Send it to the broker, with ``more`` fields of the event."""
        values = {**self.values(), **more}
        await record("change", do="web_accessed", by=operator_name(), **values)


@dataclass(slots=True)
class _Series:
    """A series of equal accesses."""

    until: float
    more: Entry | None = None
    """Number of accesses after the first."""


class Gathering:
    """Groups accesses into series; ``clock`` returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._series: dict[bool, dict[tuple[str, ...], _Series]] = {True: {}, False: {}}

    def add(self, entry: Entry) -> Entry | None:
        """Count an access; return it if it is to be recorded now, or None."""
        table = self._series[entry.outcome == "login"]
        where = network(entry.address) or entry.address
        key = (entry.outcome, entry.reason, entry.name, entry.role, where)
        if key not in table and len(table) >= MAX_SERIES:
            key = (entry.outcome, "", "", "", "")
            entry.address = entry.name = entry.role = entry.reason = ""
        series = table.get(key)
        if series is None:
            table[key] = _Series(self._clock() + WINDOW)
            return entry
        if series.more is None:
            series.more = entry
        else:
            series.more.count += 1
        return None

    def due(self, *, all_of_it: bool = False) -> list[Entry]:
        """Return and reset the counts of the series that are over, or of all."""
        now = self._clock()
        entries = []
        for table in self._series.values():
            over = [key for key, series in table.items() if all_of_it or now >= series.until]
            entries += [more for key in over if (more := table.pop(key).more) is not None]
        return entries

    def next_end(self) -> float | None:
        """Return the seconds until the next series is over; None: there is none."""
        ends = [series.until for table in self._series.values() for series in table.values()]
        return max(0.0, min(ends) - self._clock()) if ends else None


class AuditTrail:
    """Records accesses; ``record`` sends them to the broker."""

    def __init__(
        self,
        record: Callable[..., Awaitable[object]],
        gathering: Gathering | None = None,
        now_ms: Callable[[], int] = lambda: round(time.time() * 1000),
    ) -> None:
        self._record = record
        self._gathering = gathering or Gathering()
        self._now_ms = now_ms
        self._waiting: deque[Entry] = deque()
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()

    async def login(self, address: str, grant: Grant) -> None:
        """Record a login; return once it is on disk, or after a timeout."""
        entry = self._note("login", address, grant, "")
        if entry is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOGIN_TIMEOUT):
                    await entry.recorded.wait()

    def refused(self, address: str, grant: Grant | None, reason: str) -> None:
        """Record a refused login."""
        self._note("refused", address, grant, reason)

    def denied(self, address: str, grant: Grant) -> None:
        """Record a change refused because of the role."""
        self._note("denied", address, grant, "role")

    async def close(self) -> None:
        """Record the remaining counts, if the broker still runs."""
        for entry in self._gathering.due(all_of_it=True):
            self._put(entry)
        if self._waiting:
            newest = self._waiting[-1]
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_END_SECONDS):
                    await newest.recorded.wait()
        if self._task is not None:
            await end_tasks([self._task])

    def _note(self, outcome: str, address: str, grant: Grant | None, reason: str) -> Entry | None:
        entry = Entry(
            outcome,
            address[:_LONGEST_ADDRESS],
            grant.name if grant is not None else "",
            grant.role if grant is not None else "",
            reason,
            self._now_ms(),
        )
        recorded = self._gathering.add(entry)
        if recorded is not None:
            self._put(recorded)
        self._work()
        return recorded

    def _put(self, entry: Entry) -> None:
        say = log.info if entry.outcome == "login" else log.warning
        fields = {key: value for key, value in entry.values().items() if value}
        del fields["outcome"], fields["first_ms"]
        say(_LINES[entry.outcome], **fields)
        if len(self._waiting) >= MAX_WAITING:
            self._waiting.popleft()
        self._waiting.append(entry)
        self._work()

    def _work(self) -> None:
        """Start the task that records buffered events, now or when series end."""
        self._wake.set()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._keep(), name="audit trail")

    async def _keep(self) -> None:
        pause = 0.0
        while True:
            for entry in self._gathering.due():
                self._put(entry)
            pause = await self._send_all(pause)
            if self._waiting:
                await asyncio.sleep(pause)
                continue
            wait = self._gathering.next_end()
            if wait is None:
                return
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._wake.wait()

    async def _send_all(self, pause: float) -> float:
        """Send buffered events to the broker; return the seconds before the next attempt, or 0."""
        while self._waiting:
            entry = self._waiting[0]
            try:
                await entry.record(self._record)
            except FoldmqError as error:
                if not pause:
                    log.warning("web page: logins cannot be recorded yet", reason=str(error))
                return min(max(_AGAIN[0], 2 * pause), _AGAIN[1])
            entry.recorded.set()
            if self._waiting and self._waiting[0] is entry:
                self._waiting.popleft()
        return 0.0


RECORDED_FILE: Final = "web.tokens.recorded"
"""File in the data directory with the token lines as last recorded."""
ADDED: Final = "token_added"
REMOVED: Final = "token_removed"
LOOK: Final = 1.0
"""Seconds between checks of the file."""
_LONGEST_PAUSE: Final = 30.0


def changes(before: dict[str, Grant], now: dict[str, Grant]) -> list[tuple[str, Grant]]:
    """Return the removed and the added tokens; a replaced token is in both."""
    removed = [(REMOVED, grant) for name, grant in before.items() if now.get(name) != grant]
    return removed + [(ADDED, grant) for name, grant in now.items() if before.get(name) != grant]


class TokenAudit:
    """Records changes of the token file; ``record`` sends them to the broker."""

    def __init__(
        self, file: Path, recorded: Path, record: Callable[..., Awaitable[object]]
    ) -> None:
        self._file = file
        self._recorded = recorded
        self._record = record
        self._known = self._read_recorded()
        self._seen: object = None

    async def keep(self) -> None:
        """Check the file periodically until cancelled."""
        pause = LOOK
        while True:
            try:
                await self._look()
                pause = LOOK
            except FoldmqError as error:
                if pause == LOOK:
                    log.warning("web tokens: changes cannot be recorded yet", reason=str(error))
                pause = min(2 * pause, _LONGEST_PAUSE)
            await asyncio.sleep(pause)

    async def _look(self) -> None:
        seen = file_state(self._file)
        if seen == self._seen:
            return
        try:
            now = read(self._file)
        except BadTokens:  # reported by Tokens; an invalid line removes no token
            self._seen = seen
            return
        for outcome, grant in changes(self._known, now):
            await self._record_change(outcome, grant)
            if outcome == ADDED:
                self._known[grant.name] = grant
            else:
                del self._known[grant.name]
            self._write_recorded()
        self._seen = seen

    async def _record_change(self, outcome: str, grant: Grant) -> None:
        entry = Entry(outcome, "", grant.name, grant.role, "", round(time.time() * 1000))
        expires = ends(grant.expires)
        await entry.record(self._record, expires=expires)
        change = "web token added" if outcome == ADDED else "web token removed"
        log.info(change, name=grant.name, role=grant.role, expires=expires)

    def _read_recorded(self) -> dict[str, Grant]:
        try:
            return read(self._recorded)
        except BadTokens as error:
            log.warning("web tokens: recording all of them again", reason=str(error))
            return {}

    def _write_recorded(self) -> None:
        lines = [grant.line for grant in self._known.values()]
        try:
            line_files.write_lines(self._recorded, lines, as_directory=True)
        except ConfigError as error:
            log.warning("web tokens: some may be recorded twice", reason=str(error))
