"""History of each client: connects, takeovers, ends, drops, denials.

It is for operators; no decision depends on it but which retained messages an operator, or
``clear_denied_retained``, removes. The broker counts as it decides. The histories of
clients with a session are stored with the projections; a start reads them there and adds the newer
events of the log. The number of clients is limited to those with the latest changes.
"""

import sys
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import orjson

from eventstore.display import escaped
from eventstore.format.event_parsing import LogEvent
from eventstore.format.events import (
    LOG_SESSION,
    NATS_SESSION,
    Expired,
    MessageDropped,
    SessionClosed,
    SessionExpired,
    SessionOpened,
    SubscriptionDenied,
)
from eventstore.format.positions import Position, count_runs, from_runs
from eventstore.reasons import BROKER_ENDS
from protocol.mqtt.shared_filters import SHARE

MAX_CLIENTS: Final[int] = 20_000
_MAX_CONNECTS = 16
"""Number of connects whose times are kept."""
_MAX_TAKEOVERS = 16
"""Number of takeovers whose times are kept."""
_MAX_HOSTS = 3
"""Maximum addresses kept for a client."""
_MAX_DENIED = 8
"""Maximum denied topics and filters kept for a client."""
_FRESH_MS = 60_000
"""Maximum milliseconds between two samples of a client from which a rate is computed."""
_MIN_MS = 900
_ORDERLY: Final = BROKER_ENDS | {"disconnect", "kicked"}
"""Reasons for ends of connections that are no failure of the client or its network."""


class Unacknowledged(NamedTuple):
    """Deliveries that the last connections of a client left unacknowledged."""

    ref: Position
    """Message of the oldest one."""
    released: bool
    """Whether it waits for the PUBCOMP."""
    connected_ms: int
    """Milliseconds for which deliveries were unacknowledged on these connections."""
    connections: int


@dataclass(slots=True, eq=False)
class ClientHistory:
    """The history of one client."""

    since_ms: int = 0
    """Time from which events are counted, Unix time in milliseconds; 0: nothing was counted."""
    connects: int = 0
    opened_ms: tuple[int, ...] = ()
    """Times of its recent connects, Unix time in milliseconds; they are not stored."""
    failed_ms: tuple[int, ...] = ()
    """Times of the last ends of its connections that it did not ask for and the broker did not
    cause; they are not stored."""
    host: str | None = None
    """The address without port of its last connection; empty: a Unix socket; None: not known.
    Addresses are not stored."""
    user: str | None = None
    """The user of its last connection; None: it had none, or the host is not known either."""
    earlier_hosts: tuple[str, ...] = ()
    """Other addresses of earlier connections, the latest last."""
    takeovers: int = 0
    """Number of connections that ended because the client connected again."""
    taken_ms: tuple[int, ...] = ()
    """Times of the last takeovers, oldest first."""
    last_close: str = ""
    """Reason for the end of its last connection; empty: none has ended."""
    closed_ms: int = 0
    dropped: Counter[str] | None = None
    """Number of dropped messages to or from the client, by reason."""
    dropped_at: dict[str, int] | None = None
    """Time of the last drop, by reason."""
    unrecorded: dict[str, int] | None = None
    """Number of dropped messages that have no event of their own in the log, by reason."""
    denied: dict[str, int] | None = None
    """Number of denials by permission check: ``publish TOPIC``, ``subscribe FILTER``."""
    denied_as: tuple[str | None, tuple[str, ...]] | None = None
    """Its user, if it has one, and the user's groups at the last denial; None: not known, or
    the permission file did not decide. It is not stored."""
    denied_count: int = 0
    denied_ms: int = 0
    unacknowledged: Unacknowledged | None = None
    """What its last connections left unacknowledged; None: nothing. It is not stored."""
    saved: Position = 0
    """Version stored in the projections; 0: none is stored."""
    _sample: tuple[int, int, int] | None = None
    _rates: tuple[float, float] | None = None

    @property
    def hosts(self) -> tuple[str, ...]:
        """The distinct addresses of the client's last connections, the latest last."""
        return (*self.earlier_hosts, self.host) if self.host is not None else ()

    @property
    def dropped_ms(self) -> int:
        """Time of the last drop; 0: none is known."""
        return max(self.dropped_at.values()) if self.dropped_at else 0

    def rates(self, now_ms: int, begun_ms: int, received: int, sent: int) -> tuple[float, float]:
        """Return messages per second from and to the client, since the last call.

        After a longer time, or on the first call: since its connection began. ``received`` and
        ``sent`` count its messages since then.
        """
        mark = self._sample
        fresh = mark is not None and mark[0] > begun_ms and now_ms - mark[0] <= _FRESH_MS
        if fresh and mark is not None and now_ms - mark[0] < _MIN_MS and self._rates is not None:
            return self._rates
        before = mark if fresh and mark is not None else (begun_ms, 0, 0)
        seconds = max(now_ms - before[0], _MIN_MS) / 1000
        self._rates = (received - before[1]) / seconds, (sent - before[2]) / seconds
        self._sample = now_ms, received, sent
        return self._rates

    def encode(self) -> bytes:
        """Return the stored form."""
        values = ((name, getattr(self, name)) for name in _STORED)
        return orjson.dumps({name: value for name, value in values if value})


_STORED: Final = (
    "since_ms", "connects", "takeovers", "taken_ms", "last_close", "closed_ms", "dropped",
    "dropped_ms", "dropped_at", "unrecorded", "denied", "denied_count", "denied_ms",
)  # fmt: skip
"""What is stored of a history, in this order."""


def decode_history(body: bytes) -> ClientHistory:
    """Return the history from its stored form.

    Raises ValueError, TypeError or AttributeError if it is invalid.
    """
    raw: dict[str, Any] = orjson.loads(body)
    history = ClientHistory(int(raw.get("since_ms", 0)))
    history.connects = int(raw.get("connects", 0))
    history.takeovers = int(raw.get("takeovers", 0))
    history.taken_ms = tuple(int(at) for at in raw.get("taken_ms", ()))
    history.last_close = str(raw.get("last_close", ""))
    history.closed_ms = int(raw.get("closed_ms", 0))
    dropped = raw.get("dropped")
    if dropped:
        history.dropped = Counter({str(reason): int(count) for reason, count in dropped.items()})
        last_drop_ms = int(raw.get("dropped_ms", 0))  # all that an older broker stored
        times = raw.get("dropped_at") or dict.fromkeys(history.dropped, last_drop_ms)
        history.dropped_at = {str(reason): int(at) for reason, at in times.items()}
        unrecorded = raw.get("unrecorded") or {}
        history.unrecorded = {str(reason): int(count) for reason, count in unrecorded.items()}
    denied = raw.get("denied")
    if denied:
        history.denied = {str(what): int(count) for what, count in denied.items()}
    history.denied_count = int(raw.get("denied_count", 0))
    history.denied_ms = int(raw.get("denied_ms", 0))
    return history


class ClientHistories:
    """The histories of clients, by client identifier."""

    __slots__ = ("_newer", "_none", "_of", "dirty")

    def __init__(self) -> None:
        self._of: OrderedDict[str, ClientHistory] = OrderedDict()
        self._newer: dict[str, Position] = {}
        self._none = ClientHistory()
        self.dirty: dict[str, Position] | None = None
        """Changed histories, with their version in the projections; None while changes are not
        tracked."""

    def __len__(self) -> int:
        """Return the number of clients with a history."""
        return len(self._of)

    def __bool__(self) -> bool:
        """Return whether there is any; a compiled class does not ask ``__len__``."""
        return bool(self._of)

    def __contains__(self, client: object) -> bool:
        """Return whether a client has a history."""
        return client in self._of

    def items(self) -> list[tuple[str, ClientHistory]]:
        """Return all histories, the latest changes last."""
        return list(self._of.items())

    def find(self, client: str) -> ClientHistory:
        """Return the history of a client; an empty one if there is none."""
        return self._of.get(client, self._none)

    def _changed(self, client: str, now_ms: int) -> ClientHistory:
        history = self._of.get(client)
        if history is None:
            history = self._of[client] = ClientHistory(now_ms)
            if len(self._of) > MAX_CLIENTS:
                oldest, dropped_history = self._of.popitem(last=False)
                if self.dirty is not None:
                    self.dirty.setdefault(oldest, dropped_history.saved)
        else:
            self._of.move_to_end(client)
        if self.dirty is not None:
            self.dirty.setdefault(client, history.saved)
        return history

    def opened(self, client: str, now_ms: int, host: str, user: str | None = None) -> None:
        """Record that a client connected from an address; it is empty for a Unix socket."""
        history = self._changed(client, now_ms)
        if history.host is not None and history.host != host:
            others = [other for other in history.hosts if other != host]
            history.earlier_hosts = tuple(others[1 - _MAX_HOSTS :])
        history.host, history.user = host, user
        history.connects += 1
        history.opened_ms = (*history.opened_ms[1 - _MAX_CONNECTS :], now_ms)

    def closed(self, client: str, reason: str, now_ms: int) -> None:
        """Record that the connection of a client ended."""
        history = self._changed(client, now_ms)
        history.last_close, history.closed_ms = reason, now_ms
        if reason == "taken_over":
            history.takeovers += 1
            history.taken_ms = (*history.taken_ms[1 - _MAX_TAKEOVERS :], now_ms)
        elif reason not in _ORDERLY:
            history.failed_ms = (*history.failed_ms[1 - _MAX_CONNECTS :], now_ms)

    def session_ended(self, client: str) -> None:
        """Record that the session of a client ended: its history is no longer stored."""
        history = self._of.get(client)
        if history is not None and self.dirty is not None:
            self.dirty.setdefault(client, history.saved)

    def dropped(
        self, client: str, reason: str, count: int, now_ms: int, *, recorded: bool = True
    ) -> None:
        """Record that messages to a client, or from it, were dropped.

        ``recorded``: a MessageDropped or Expired in the log says so.
        """
        history = self._changed(client, now_ms)
        if history.dropped is None or history.dropped_at is None:
            history.dropped, history.dropped_at = Counter(), {}
        history.dropped[reason] += count
        history.dropped_at[reason] = now_ms
        if not recorded:
            history.unrecorded = history.unrecorded or {}
            history.unrecorded[reason] = history.unrecorded.get(reason, 0) + count

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
        history = self._changed(client, now_ms)
        history.denied_as = user
        history.denied_count += count
        history.denied_ms = now_ms
        if history.denied is None:
            history.denied = {}
        asked = f"{what} {topic}"
        if asked in history.denied or len(history.denied) < _MAX_DENIED:
            history.denied[asked] = history.denied.get(asked, 0) + count

    # The stored histories.

    def load(self, client: str, history: ClientHistory, bound: Position) -> None:
        """Load a stored history as of ``bound``: everything before this position is counted."""
        history.saved = bound
        self._of[client] = history
        self._newer[client] = bound

    def counts(self, client: str, at: Position) -> bool:
        """Return whether the loaded history of a client already counts an event at a position."""
        return at < self._newer.get(client, 0)

    def finish_loading(self) -> None:
        """Record that everything before the loaded histories has been read."""
        self._newer = {}


# ---------------------------------------------------------------------- events that are read back


LONGEST_DENIED: Final[int] = 200
"""Characters of a denied topic or filter that a history, or a line about it, has."""
_NOT_AUTHORIZED: Final = 0x87
HISTORY_EVENTS: Final[frozenset[type]] = frozenset(
    {Expired, MessageDropped, SessionClosed, SessionExpired, SessionOpened, SubscriptionDenied}
)
"""The types of events that concern the history of a client."""


def add_to_history(histories: ClientHistories, event: LogEvent, at: Position, ms: int) -> None:
    """Add an event at a position, of ``ms`` (Unix time), unless the loaded history counts it.

    The event is read back from the log. The counts are the same as those that the broker keeps when
    it decides it. Facts that no event records are missing, such as refused publications at QoS 0
    that are not retained, and the user of a denial; a will that was denied counts as a publication.
    """
    client: str = event.session  # type: ignore[union-attr,assignment]  # these types have one
    if histories.counts(client, at):
        return
    if isinstance(event, SessionOpened):
        if not _is_internal(client):
            unix = event.address.startswith("unix:")
            host = "" if unix else event.address.rpartition(":")[0]
            histories.opened(client, ms, sys.intern(host))
    elif isinstance(event, SessionClosed):
        if not _is_internal(client):
            histories.closed(client, event.reason, ms)
    elif isinstance(event, SessionExpired):
        histories.session_ended(client)
    elif isinstance(event, MessageDropped):
        histories.dropped(client, event.reason, event.count, ms)
        if event.reason == "not_permitted" and event.topics and not event.filter:
            topic = escaped(event.topics[0], LONGEST_DENIED)
            histories.denied(client, "publish", topic, event.count, ms, None)
    elif isinstance(event, Expired):
        histories.dropped(client, "expired", count_runs(event.refs), ms)
    elif isinstance(event, SubscriptionDenied):
        for topic_filter, reason in zip(event.filters, from_runs(event.reasons), strict=False):
            if reason == _NOT_AUTHORIZED:
                asked = escaped(topic_filter, LONGEST_DENIED)
                histories.denied(client, "subscribe", asked, 1, ms, None)


def _is_internal(client: str) -> bool:
    """Return whether a session belongs to no client: the broker itself opens and closes it."""
    return client == NATS_SESSION or client.startswith((LOG_SESSION, SHARE))
