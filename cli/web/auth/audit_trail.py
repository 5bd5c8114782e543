"""The audit trail of the web page: logins and refusals as events in the log of the broker.

None of it can grow the log without bound. What is alike (outcome, reason, token, network
of the address) is one *series*: its first is recorded at once, those that follow within ten minutes
are counted and recorded as one event when these are over. Of so many series at once each has events
of its own; all others are one series without an address.

The page goes on when the broker cannot record: what waits is kept, up to a bound, and recorded when
it can. A line in the log of the process says the same in any case.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import structlog

from actors.authn import network
from cli.operator import by
from protocol.errors import FoldmqError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from cli.web.auth.tokens import Grant

WINDOW: Final = 600.0
"""Seconds for which what is alike is one event."""
MOST_SERIES: Final = 100
"""Series with an address, of logins and of refusals each."""
MOST_WAITING: Final = 1_000
"""Events that wait for a broker that cannot record them; the oldest are dropped."""
LOGIN_PATIENCE: Final = 2.0
"""Seconds for which a login waits to be recorded."""
_AGAIN: Final = (1.0, 30.0)
_LONGEST_ADDRESS: Final = 100
_END_SECONDS: Final = 1.0

_LINES: Final = {
    "login": "web page login",
    "refused": "web page login refused",
    "denied": "web page change denied",
}

log = structlog.get_logger("foldmq")


@dataclass(slots=True)
class Entry:
    """What becomes an event; its fields are those of ``WebAccessed``."""

    outcome: str
    address: str
    name: str
    role: str
    reason: str
    first_ms: int
    count: int = 1
    recorded: asyncio.Event = field(default_factory=asyncio.Event)

    def values(self) -> dict[str, str | int]:
        """Return the fields of the event."""
        return {
            "outcome": self.outcome,
            "address": self.address,
            "name": self.name,
            "role": self.role,
            "reason": self.reason,
            "count": self.count,
            "first_ms": self.first_ms,
        }


@dataclass(slots=True)
class _Series:
    """What is alike, since its first one was recorded."""

    until: float
    more: Entry | None = None
    """Those that came behind the first one."""


class Gathering:
    """Makes few entries of many; ``clock`` gives seconds that never go back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._series: dict[bool, dict[tuple[str, ...], _Series]] = {True: {}, False: {}}

    def add(self, entry: Entry) -> Entry | None:
        """Count one access; return what to record now, or None if it is recorded later."""
        table = self._series[entry.outcome == "login"]
        where = network(entry.address) or entry.address
        key = (entry.outcome, entry.reason, entry.name, entry.role, where)
        if key not in table and len(table) >= MOST_SERIES:
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
        """Return what was counted in series that are over, or in all; these begin anew."""
        now = self._clock()
        found = []
        for table in self._series.values():
            over = [key for key, one in table.items() if all_of_it or now >= one.until]
            found += [more for key in over if (more := table.pop(key).more) is not None]
        return found

    def next_end(self) -> float | None:
        """Return in how many seconds the next series is over; None: there is none."""
        ends = [one.until for table in self._series.values() for one in table.values()]
        return max(0.0, min(ends) - self._clock()) if ends else None


class Trail:
    """Records what happens at the door of the page; ``record`` asks the broker to do so."""

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
        """Record a login; returns when that is on disk, or could not be done in time."""
        entry = self._note("login", address, grant, "")
        if entry is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(entry.recorded.wait(), LOGIN_PATIENCE)

    def refused(self, address: str, grant: Grant | None, reason: str) -> None:
        """Record that a login was refused."""
        self._note("refused", address, grant, reason)

    def denied(self, address: str, grant: Grant) -> None:
        """Record that a change was refused because of the role."""
        self._note("denied", address, grant, "role")

    async def close(self) -> None:
        """Record what was counted, if the broker is there still."""
        for entry in self._gathering.due(all_of_it=True):
            self._put(entry)
        if self._waiting:
            last = self._waiting[-1]
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(last.recorded.wait(), _END_SECONDS)
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def _note(self, outcome: str, address: str, grant: Grant | None, reason: str) -> Entry | None:
        entry = Entry(
            outcome,
            address[:_LONGEST_ADDRESS],
            grant.name if grant is not None else "",
            grant.role if grant is not None else "",
            reason,
            self._now_ms(),
        )
        found = self._gathering.add(entry)
        if found is not None:
            self._put(found)
        self._work()
        return found

    def _put(self, entry: Entry) -> None:
        say = log.info if entry.outcome == "login" else log.warning
        said = {key: value for key, value in entry.values().items() if value}
        del said["outcome"], said["first_ms"]
        say(_LINES[entry.outcome], **said)
        if len(self._waiting) >= MOST_WAITING:
            self._waiting.popleft()
        self._waiting.append(entry)
        self._work()

    def _work(self) -> None:
        """Start the task that records what waits, now or when series end."""
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
                await asyncio.wait_for(self._wake.wait(), wait)

    async def _send_all(self, pause: float) -> float:
        """Send what waits to the broker; return the pause before another try, 0: none."""
        while self._waiting:
            entry = self._waiting[0]
            try:
                await self._record("change", do="web_accessed", by=by(), **entry.values())
            except FoldmqError as error:
                if not pause:
                    log.warning("web page: logins cannot be recorded yet", reason=str(error))
                return min(max(_AGAIN[0], 2 * pause), _AGAIN[1])
            entry.recorded.set()
            if self._waiting and self._waiting[0] is entry:
                self._waiting.popleft()
        return 0.0
