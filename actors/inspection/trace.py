"""One trace: the actors it covers, its rate limit, and its unsent lines."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import orjson

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from actors.kernel.actor import LoopActor

AT_ONCE = 100
"""Maximum number of lines for one observation."""
_LINE_BYTES = 64 * 1024
_BUFFER_BYTES = 256 * 1024
"""Maximum unsent bytes; a NATS server accepts this much in one message."""


class End(NamedTuple):
    """The reason for the end of a trace."""

    cause: Literal["actor", "broker", "lease", "stopped"]
    why: str
    """The same as text."""


class Trace:
    """The lines of one trace, until they are sent; bounded in rate and size.

    In each second the first ``rate`` lines are shown. The others are counted, and the count is sent
    with the lines. ``on_content`` is called when there is something to send.
    """

    __slots__ = (
        "_begun",
        "_given",
        "_lines",
        "_monotonic",
        "_number",
        "_on_content",
        "_rate",
        "_size",
        "_skipped",
        "actors",
        "client",
        "deadline",
        "one",
        "over",
        "subject",
        "token",
    )

    def __init__(
        self,
        token: str,
        subject: str,
        rate: int,
        monotonic: Callable[[], float],
        on_content: Callable[[], None],
    ) -> None:
        self.token = token
        self.subject = subject
        self.actors: set[LoopActor] = set()
        """The actors that it currently covers."""
        self.client: str | None = None
        """The client whose actors it covers, including future ones."""
        self.one: LoopActor | None = None
        """The actor whose end also ends the trace."""
        self.over = False
        """Whether it has ended: no more actors are added."""
        self.deadline = 0.0
        """Monotonic time at which it ends unless it is kept."""
        self._rate = rate
        self._monotonic = monotonic
        self._on_content = on_content
        self._begun = monotonic()
        self._given = 0
        self._lines: list[bytes] = []
        self._size = 0
        self._skipped = 0
        self._number = 0

    def room(self) -> int:
        """Return how many lines it accepts at this time."""
        now = self._monotonic()
        if now - self._begun >= 1.0:
            self._begun, self._given = now, 0
        return self._rate - self._given if self._size < _BUFFER_BYTES else 0

    def add(self, line: bytes) -> None:
        """Add a line, or count it as skipped."""
        if not self.room() or len(line) > _LINE_BYTES:
            self.skip(1)
            return
        self._given += 1
        self._size += len(line)
        self._lines.append(line)
        self._on_content()

    def skip(self, count: int) -> None:
        """Count lines that are not shown."""
        if count > 0:
            self._skipped += count
            self._on_content()

    def take(self, end: End | None = None) -> bytes | None:
        """Remove and return the unsent lines; None if there are none.

        ``end`` is the reason for the end of the trace.
        """
        if not (self._lines or self._skipped or end):
            return None
        self._number += 1
        about: dict[str, Any] = {"number": self._number, "skipped": self._skipped}
        if end is not None:
            about |= {"ended": end.why, "cause": end.cause}
        data = b'{"lines":[' + b",".join(self._lines) + b"]," + orjson.dumps(about)[1:]
        self._lines, self._size, self._skipped = [], 0, 0
        return data


def add_lines(traces: Iterable[Trace], count: int, lines: Iterable[dict[str, Any]]) -> None:
    """Add as many of ``count`` lines to traces as they accept; the others are not created."""
    traces = list(traces)
    room = max((trace.room() for trace in traces), default=0)
    left = count
    if room:
        for line in islice(lines, min(count, room, AT_ONCE)):
            encoded = orjson.dumps(line)
            for trace in traces:
                trace.add(encoded)
            left -= 1
    for trace in traces:
        trace.skip(left)
