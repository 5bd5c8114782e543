"""Backpressure: slows down the publishers of clients that do not keep up."""

from collections import Counter
from collections.abc import Callable
from typing import Protocol

from actors.kernel.clock import LogClock, Timers
from actors.node.read_pause import ReadPause

_LONGEST = 1.0
"""Maximum seconds for which publishers wait for a slow reader."""
BACKLOG = 2048
"""Length of a connected client's queue from which its publishers wait."""
_LOOK = 0.5
"""Seconds between two checks of how fast a backlog becomes shorter."""
_SOON = 2.0
"""Seconds within which it must become empty at that speed; otherwise no publisher waits for it."""
_AT_MOST = 5.0
"""Maximum seconds for which publishers wait for a client without a break."""
_GIVEN_UP = 10.0
"""Seconds for which no publisher waits for a client that did not keep up."""


class SlowedPublisher(Protocol):
    """The connection of a client that publishes."""

    @property
    def ended(self) -> bool:
        """True once the connection is closed or being closed."""

    def pause(self, reason: int) -> None:
        """Stop reading until every reason to pause is removed."""

    def resume(self, reason: int) -> None:
        """Remove a reason to pause; read again if it was the last one."""


class _HeldPublishers:
    """Publishers that wait for a client that does not keep up."""

    __slots__ = ("_counts", "_held", "_reason")

    def __init__(self, reason: int) -> None:
        self._reason = reason
        self._counts: Counter[SlowedPublisher] = Counter()
        """Messages of each publisher."""
        self._held: dict[SlowedPublisher, None] = {}

    def _causes(self, publisher: SlowedPublisher, count: int) -> bool:
        """Count messages; return whether the publisher causes at least as much as the mean."""
        counts = self._counts
        counts[publisher] += count
        return counts[publisher] * len(counts) >= counts.total()

    def _pause(self, publisher: SlowedPublisher) -> None:
        self._held[publisher] = None
        publisher.pause(self._reason)

    def release(self) -> None:
        """Resume all publishers: the client has caught up, or has left."""
        publishers, self._held = self._held, {}
        for publisher in publishers:
            publisher.resume(self._reason)


class SlowReaderBackpressure(_HeldPublishers):
    """Publishers that wait for one client: those that publish at least as much as the mean.

    They wait for a limited time: after it a client that does not catch up loses QoS 0 messages
    instead, until it has caught up.
    """

    __slots__ = ("_gave_up",)

    def __init__(self) -> None:
        super().__init__(ReadPause.SLOW_READER)
        self._gave_up = False

    def hold(self, publisher: SlowedPublisher, count: int, timers: Timers) -> None:
        """Pause a publisher that has just published ``count`` messages."""
        if self._gave_up or publisher.ended or not self._causes(publisher, count):
            return
        if not self._held:
            timers.after(_LONGEST, self._give_up)
        self._pause(publisher)

    def _give_up(self) -> None:
        if self._held:
            self._gave_up = True
            self.release()


class Backlog(_HeldPublishers):
    """Publishers that wait for the queue of one client to become shorter.

    They wait as long as the queue will soon be short at the speed at which the client reads. No
    publisher waits for a client that does not read or reads much more slowly: its messages are
    queued within the limits of its queue. Only publishers that publish at least as much as the mean
    wait. ``state`` returns how many messages wait, and how many have left the queue.
    """

    def __init__(
        self, timers: Timers, clock: LogClock, state: Callable[[], tuple[int, int]]
    ) -> None:
        super().__init__(ReadPause.BACKLOG)
        self._timers = timers
        self._clock = clock
        self._state = state
        self._free_until = 0.0
        """Monotonic time until which no publisher waits."""
        self._looks = 0
        self._seen = 0
        self._since: float | None = None
        """When the timer was set; None: no timer is set."""

    def hold(self, publisher: SlowedPublisher, count: int) -> None:
        """Pause a publisher until the queue is short, or will not become short soon.

        ``count`` is how many messages it has just published to the client.
        """
        now = self._clock.monotonic()
        if publisher.ended or now < self._free_until:
            return
        if not self._causes(publisher, count):
            return
        if not self._held:
            self._seen, self._looks = self._state()[1], 0
            if self._since is None:
                self._timers.after(_LOOK, self._look)
            self._since = now
        self._pause(publisher)

    def release(self) -> None:
        """Resume all publishers."""
        self._counts.clear()
        super().release()

    def _look(self) -> None:
        """Resume all publishers if the queue does not become short soon."""
        since, self._since = self._since, None
        if not self._held or since is None:
            return
        now = self._clock.monotonic()
        if now - since < _LOOK / 2:  # they were resumed meanwhile, and wait again
            self._since = since
            self._timers.after(_LOOK, self._look)
            return
        waiting, departed = self._state()
        self._looks += 1
        if (
            self._looks * _LOOK >= _AT_MOST
            or waiting * (now - since) > (departed - self._seen) * _SOON
        ):
            self._free_until = now + _GIVEN_UP
            self.release()
            return
        self._seen, self._since = departed, now
        self._timers.after(_LOOK, self._look)
