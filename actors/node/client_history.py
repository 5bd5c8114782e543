"""History of each client since the broker's start: connects, takeovers, ends, drops, denials.

It is kept in memory for operators and decides nothing. A bounded number of clients is remembered,
those with the latest changes.
"""

from __future__ import annotations

from collections import Counter, OrderedDict

_MOST_CLIENTS = 20_000
_MOST_CONNECTS = 16
"""Number of connects whose times are kept."""
_MOST_HOSTS = 3
"""Maximum addresses kept for a client."""
_MOST_DENIED = 8
"""Maximum denied topics and filters kept for a client."""
_FRESH_MS = 60_000
"""Maximum milliseconds between two samples of a client from which a rate is computed."""
_LEAST_MS = 900


class ClientHistory:
    """The history of one client."""

    __slots__ = (
        "_rates",
        "_sample",
        "closed_ms",
        "connects",
        "denied",
        "denied_as",
        "denied_count",
        "denied_ms",
        "dropped",
        "dropped_ms",
        "hosts",
        "last_close",
        "opened_ms",
        "taken_ms",
        "takeovers",
    )

    def __init__(self) -> None:
        self.connects = 0
        self.opened_ms: tuple[int, ...] = ()
        """Times of its recent connects, Unix time in milliseconds."""
        self.hosts: tuple[str, ...] = ()
        """The distinct addresses, without ports, that it connected from last, the latest last."""
        self.takeovers = 0
        """Number of connections that ended because the client connected again."""
        self.taken_ms: tuple[int, ...] = ()
        """Times of the recent takeovers."""
        self.last_close = ""
        """Reason for the end of its last connection; empty: none has ended."""
        self.closed_ms = 0
        self.dropped: Counter[str] | None = None
        """Number of dropped messages to or from the client, by reason."""
        self.dropped_ms = 0
        """Time of the last drop."""
        self.denied: dict[str, int] | None = None
        """Number of denials by permission check: ``publish TOPIC``, ``subscribe FILTER``."""
        self.denied_as: tuple[str | None, tuple[str, ...]] | None = None
        """Its user, if it has one, and the user's groups at the last denial; None: not known, or
        the permission file did not decide."""
        self.denied_count = self.denied_ms = 0
        self._sample: tuple[int, int, int] | None = None
        self._rates: tuple[float, float] | None = None

    def rates(self, now_ms: int, begun_ms: int, taken: int, sent: int) -> tuple[float, float]:
        """Return messages per second from and to the client, since the last call.

        After a longer time, or on the first call: since its connection began. ``taken`` and
        ``sent`` count its messages since then.
        """
        last = self._sample
        fresh = last is not None and last[0] > begun_ms and now_ms - last[0] <= _FRESH_MS
        if fresh and last is not None and now_ms - last[0] < _LEAST_MS and self._rates is not None:
            return self._rates
        before = last if fresh and last is not None else (begun_ms, 0, 0)
        seconds = max(now_ms - before[0], _LEAST_MS) / 1000
        self._rates = (taken - before[1]) / seconds, (sent - before[2]) / seconds
        self._sample = now_ms, taken, sent
        return self._rates


_NONE = ClientHistory()


class ClientHistories:
    """The histories of clients, by client identifier."""

    __slots__ = ("_of",)

    def __init__(self) -> None:
        self._of: OrderedDict[str, ClientHistory] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of clients with a history."""
        return len(self._of)

    def items(self) -> list[tuple[str, ClientHistory]]:
        """Return all histories, the latest changes last."""
        return list(self._of.items())

    def find(self, client: str) -> ClientHistory:
        """Return the history of a client; an empty one if there is none."""
        return self._of.get(client, _NONE)

    def _changed(self, client: str) -> ClientHistory:
        history = self._of.get(client)
        if history is None:
            history = self._of[client] = ClientHistory()
            if len(self._of) > _MOST_CLIENTS:
                self._of.popitem(last=False)
        else:
            self._of.move_to_end(client)
        return history

    def opened(self, client: str, now_ms: int, host: str) -> None:
        """Record that a client connected from an address; it is empty for a Unix socket."""
        history = self._changed(client)
        history.connects += 1
        history.opened_ms = (*history.opened_ms[1 - _MOST_CONNECTS :], now_ms)
        if not history.hosts or history.hosts[-1] != host:
            others = [one for one in history.hosts if one != host]
            history.hosts = (*others[1 - _MOST_HOSTS :], host)

    def closed(self, client: str, reason: str, now_ms: int) -> None:
        """Record that the connection of a client ended."""
        history = self._changed(client)
        history.last_close, history.closed_ms = reason, now_ms
        if reason == "taken_over":
            history.takeovers += 1
            history.taken_ms = (*history.taken_ms[1 - _MOST_CONNECTS :], now_ms)

    def dropped(self, client: str, reason: str, count: int, now_ms: int) -> None:
        """Record that messages to a client, or from it, were dropped."""
        history = self._changed(client)
        if history.dropped is None:
            history.dropped = Counter()
        history.dropped[reason] += count
        history.dropped_ms = now_ms

    def denied(
        self,
        client: str,
        what: str,
        topic: str,
        count: int,
        now_ms: int,
        user: tuple[str | None, tuple[str, ...]] | None,
    ) -> None:
        """Record a denied action of a client, ``publish`` or ``subscribe``, and its topic.

        ``user`` is as for ``ClientHistory.denied_as``.
        """
        history = self._changed(client)
        history.denied_as = user
        history.denied_count += count
        history.denied_ms = now_ms
        if history.denied is None:
            history.denied = {}
        asked = f"{what} {topic}"
        if asked in history.denied or len(history.denied) < _MOST_DENIED:
            history.denied[asked] = history.denied.get(asked, 0) + count
