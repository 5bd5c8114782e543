"""The state of one session as a fold over its events.

``evolve(state, event, at, time_ms)`` changes the state in place; given the same events at the
same positions it yields the same state for every caller.

In the terms of MQTT 3.1.1 section 3.1.2.4, a session contains its subscriptions, QoS 1 and 2
messages sent but not acknowledged (``inflight``, and ``releasing`` after PUBREC), QoS 1 and 2
messages pending transmission (``queue`` of each subscription), and QoS 2 messages received but not
released (``inbound``); also its will.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, Final, NamedTuple

from eventstore.format.event_parsing import Event
from eventstore.format.events import (
    Acked,
    Assigned,
    Completed,
    Delivered,
    Expired,
    InboundReplaced,
    MessageDropped,
    MessagePublished,
    Queued,
    Received,
    Redelivered,
    Refused,
    Released,
    ReplayOpened,
    ReplayReached,
    Returned,
    SessionClosed,
    SessionOpened,
    SessionTakenOver,
    Subscribed,
    SubscriptionDenied,
    Unsubscribed,
    WillArmed,
    WillCancelled,
    WillFired,
)
from eventstore.format.positions import Position, count_runs, from_runs
from projections.state.filter_links import holds_links
from projections.state.waiting_queue import WaitingQueue
from protocol.mqtt.replay_filters import replayed_filter

SHARED_HOME, SHARED_PART = 64, 128
"""Subscription options that clients cannot request, of shared subscriptions with members in several
logs: of the one that matches topics, and of those that get the messages it assigns to their
logs."""


@dataclass(slots=True, eq=False)
class ReplayState:
    """How far a subscription has read the log, whose messages it sends; see ``ReplayOpened``."""

    topic_filter: str
    """The messages on topics that match this filter are sent."""
    start: dict[str, Position]
    """Positions after which it began, by the name of the log; "": this one."""
    start_ms: int = 0
    """Where it began in other logs: Unix time in milliseconds; 0: at their beginning."""
    until: dict[str, Position] = field(default_factory=dict)
    """The last positions to be read, by the name of the log."""
    until_ms: int = 0
    """The last time to be read in other logs, Unix time in milliseconds; 0: there is none."""
    last: bool = False
    """Up to ``start`` it sends the last message of each topic, and then all messages."""
    through: dict[str, Position] = field(default_factory=dict)
    """The last positions that were read, by the name of the log; none: nothing was read."""
    state: str = ""
    """See ``ReplayReached``."""
    sent: int = 0
    """Number of messages sent."""
    left_out: dict[str, int] = field(default_factory=dict)
    """Number of other messages that match, by the reason."""
    reached_ms: int = 0
    """Time of the last ReplayReached, or of the beginning; Unix time in milliseconds."""


@dataclass(slots=True, eq=False)
class SubscriptionState:
    """One subscription of a session, and the messages that wait in it."""

    filter: str
    qos: int
    active: bool = True
    """False: unsubscribed, but messages that matched before still have to be completed."""
    options: int = 0
    """Subscription options other than the QoS (MQTT 5), see ``Subscribed``."""
    identifier: int = 0
    """Subscription identifier (MQTT 5); 0: none."""
    outstanding: int = 0
    """Deliveries sent and not completed: they count towards ``max_ack_pending``."""
    queue: WaitingQueue | None = None
    """Waiting messages, oldest first; None when there never were any."""
    queued_bytes: int = 0
    """Their payload bytes."""
    replay: ReplayState | None = None
    """What it reads, if it reads the log; None: it gets messages as they are published."""


class InFlight(NamedTuple):
    """A delivery that the client has not completed."""

    ref: Position
    flags: int
    """QoS, RETAIN_FLAG and RAP_FLAG."""
    subscription: SubscriptionState
    sent_ms: int
    """Time of the last transmission, Unix time in milliseconds."""


class Will(NamedTuple):
    """An armed will; its payload and properties are in the record of its WillArmed event."""

    topic: str
    qos: int
    retain: bool
    ref: Position
    """Position of the WillArmed event."""
    delay: int = 0
    """Delay in seconds after the end of the connection (MQTT 5)."""
    grace: int = 0
    """Minimum seconds for which the will waits for its client, because the broker ended."""

    @property
    def wait(self) -> int:
        """Seconds between the end of the connection and the publication of the will."""
        return max(self.delay, self.grace)


class NoEntries(dict[Any, Any]):
    """An empty dict that refuses entries, shared by all sessions without entries of a kind."""

    __slots__ = ()

    def __setitem__(self, key: Any, value: Any) -> None:
        """Raise TypeError: the session must get its own dict first."""
        raise TypeError(f"entry {key!r} for all sessions")

    def update(self, *_args: Any, **_named: Any) -> None:
        """Raise TypeError, like ``__setitem__``."""
        raise TypeError("entries for all sessions")

    def setdefault(self, key: Any, _default: Any = None) -> Any:
        """Raise TypeError, like ``__setitem__``."""
        raise TypeError(f"entry {key!r} for all sessions")


_NO_ENTRIES: Final = NoEntries()


def _no_entries() -> dict[Any, Any]:
    return _NO_ENTRIES


@dataclass(slots=True, eq=False)
class SessionState:
    """The state of one session that must survive a crash."""

    session: str
    """Client identifier."""
    connected: bool = False
    clean: bool = True
    generation: int = 0
    level: int = 4
    bridge: bool = False
    """Whether the client is another broker's bridge."""
    expiry: int | None = None
    """Session expiry interval in seconds; None: the setting of the broker."""
    user: str | None = None
    receive_maximum: int = 65_535
    """Number of unfinished QoS 1 and 2 deliveries that the client accepts at a time."""
    packet_maximum: int = 0
    """Bytes of the largest packet that the client accepts; 0: any."""
    closed_ms: int = 0
    """End of the last connection, Unix time in milliseconds."""
    subscriptions: dict[str, SubscriptionState] = field(default_factory=dict)
    """By topic filter, including inactive ones with deliveries to complete."""
    inflight: dict[int, InFlight] = field(default_factory=dict)
    """By packet identifier, in the order of delivery: PUBACK or PUBREC is awaited."""
    releasing: dict[int, InFlight] = field(default_factory=_no_entries)
    """By packet identifier, in the order of the PUBRECs: PUBCOMP is awaited. To add entries, use
    :meth:`own_releasing`."""
    inbound: dict[int, Position] = field(default_factory=_no_entries)
    """QoS 2 messages from the client, by packet identifier: PUBREL is awaited. To add entries, use
    :meth:`own_inbound`."""
    last_pid: int = 0
    """The last assigned packet identifier."""
    waiting: dict[str, SubscriptionState] = field(default_factory=_no_entries)
    """The subscriptions with a non-empty queue, by topic filter, in the order in which the queues
    began to fill. To add entries, use :meth:`own_waiting`."""
    replays: dict[str, SubscriptionState] = field(default_factory=_no_entries)
    """The subscriptions that read the log, by topic filter. To add entries, use
    :meth:`own_replays`."""
    all_linked: bool = False
    """Whether a filter that may have linked others was removed while messages wait: see
    ``filter_links``."""
    links: dict[str, set[str]] | None = None
    """Filters that are linked with each filter, None when not computed: a cache, not state."""
    queued: int = 0
    """Messages waiting in all queues."""
    queued_bytes: int = 0
    """Their payload bytes."""
    will: Will | None = None
    saved: Position = 0
    """Version of the snapshot in the projections, 0 for none; kept by the projector."""

    def subscription(self, topic_filter: str) -> SubscriptionState:
        """Return the subscription with this filter; an inactive one when there is none."""
        held = self.subscriptions.get(topic_filter)
        if held is None:
            held = SubscriptionState(topic_filter, 0, active=False)
            self.subscriptions[topic_filter] = held
            self.links = None
        return held

    def own_releasing(self) -> dict[int, InFlight]:
        """Return ``releasing``, to which entries may be added."""
        if type(self.releasing) is not dict:
            self.releasing = {}
        return self.releasing

    def own_inbound(self) -> dict[int, Position]:
        """Return ``inbound``, to which entries may be added."""
        if type(self.inbound) is not dict:
            self.inbound = {}
        return self.inbound

    def own_waiting(self) -> dict[str, SubscriptionState]:
        """Return ``waiting``, to which entries may be added."""
        if type(self.waiting) is not dict:
            self.waiting = {}
        return self.waiting

    def own_replays(self) -> dict[str, SubscriptionState]:
        """Return ``replays``, to which entries may be added."""
        if type(self.replays) is not dict:
            self.replays = {}
        return self.replays

    def active(self) -> list[SubscriptionState]:
        """Return the subscriptions that new messages are matched with."""
        return [held for held in self.subscriptions.values() if held.active]


def _reset(state: SessionState) -> None:
    state.subscriptions = {}
    state.inflight = {}
    state.releasing = _no_entries()
    state.inbound = _no_entries()
    state.waiting = _no_entries()
    state.replays = _no_entries()
    state.last_pid = state.queued = state.queued_bytes = 0
    state.all_linked = False
    state.links = None


def _opened(state: SessionState, event: SessionOpened, _at: Position, _ms: int) -> None:
    if not event.resumed:
        _reset(state)
    state.connected = True
    state.clean = event.clean
    state.generation = event.generation
    state.level = event.level
    state.bridge = event.bridge
    state.expiry = event.expiry
    state.user = event.user
    state.receive_maximum = event.receive_maximum
    state.packet_maximum = event.packet_maximum
    state.will = None


def _closed(state: SessionState, event: SessionClosed, _at: Position, ms: int) -> None:
    state.connected = False
    state.closed_ms = ms
    if event.expiry is not None:
        state.expiry = event.expiry
        state.clean = not event.expiry
    if event.grace and state.will is not None:
        state.will = state.will._replace(grace=event.grace)
    if state.clean:
        # It ends with its connection; only a will that waits may be left.
        _reset(state)


def _nothing(_state: SessionState, _event: Event, _at: Position, _ms: int) -> None:
    """Change nothing: what a takeover changes is in the SessionOpened that follows."""


def _subscribed(state: SessionState, event: Subscribed, _at: Position, _ms: int) -> None:
    filters: Sequence[Any] = event.filters  # readers of columns have lists in place of tuples
    for topic_filter, qos in filters:
        held = state.subscription(topic_filter)
        held.active = True
        held.qos = qos
        held.options = 0
        held.identifier = event.identifier
    if event.options:
        for (topic_filter, _), options in zip(filters, event.options, strict=True):
            state.subscriptions[topic_filter].options = options


def _forget_if_done(state: SessionState, held: SubscriptionState) -> None:
    if held.active or held.outstanding or held.queue:
        return
    if state.waiting and holds_links(state, held.filter):
        state.all_linked = True
    state.subscriptions.pop(held.filter, None)
    state.links = None


def _unsubscribed(state: SessionState, event: Unsubscribed, _at: Position, _ms: int) -> None:
    for topic_filter in event.filters:
        held = state.subscriptions.get(topic_filter)
        if held is not None:
            held.active = False
            if held.replay is not None:
                held.replay = None
                del state.replays[topic_filter]
            _forget_if_done(state, held)


def _replay_opened(state: SessionState, event: ReplayOpened, _at: Position, ms: int) -> None:
    held = state.subscription(event.filter)
    state.own_replays()[event.filter] = held
    held.replay = ReplayState(
        event.topic_filter or replayed_filter(event.filter),
        event.start,
        event.start_ms,
        event.until,
        event.until_ms,
        event.last,
        {} if event.last else event.start,
        reached_ms=ms,
    )


def _replay_reached(state: SessionState, event: ReplayReached, _at: Position, ms: int) -> None:
    held = state.replays.get(event.filter)
    if held is None or held.replay is None:  # the event that opened it was lost
        return
    replay = held.replay
    # Checkpoints and decoded snapshots may share these tables: they are replaced, never changed.
    replay.through = {**replay.through, **event.through}
    replay.state = event.state
    replay.sent += event.sent
    replay.reached_ms = ms
    if event.left_out:
        counts = Counter(replay.left_out)
        counts.update(event.left_out)
        replay.left_out = dict(counts)


def _published(state: SessionState, event: MessagePublished, at: Position, _ms: int) -> None:
    if event.qos == 2 and not event.will:
        state.own_inbound().update(
            zip(from_runs(event.pids), range(at, at + event.count), strict=True)
        )


def _released(
    state: SessionState, event: Released | InboundReplaced, _at: Position, _ms: int
) -> None:
    for pid in from_runs(event.pids):
        state.inbound.pop(pid, None)


LOST: Final = "lost"
"""Reason of a MessageDropped: the message was in a record that was lost. It leaves the session
wherever it is."""


def _leave_queue(state: SessionState, held: SubscriptionState, count: int, size: int) -> None:
    if held.queue is not None:
        held.queue.discard(count)
    _left_queue(state, held, count, size)


def _left_queue(state: SessionState, held: SubscriptionState, count: int, size: int) -> None:
    if not held.queue:
        state.waiting.pop(held.filter, None)
        if not state.waiting:
            state.all_linked = False
            state.links = None
    state.queued -= count
    state.queued_bytes -= size
    held.queued_bytes -= size


def _delivered(state: SessionState, event: Delivered, _at: Position, ms: int) -> None:
    held = state.subscription(event.filter)
    pids = from_runs(event.pids)
    refs = from_runs(event.refs)
    flags = event.qos | event.retain << 2 | event.rap << 3
    if len(pids) == 1 == len(refs):  # the most frequent case by far
        state.inflight[pids[0]] = InFlight(refs[0], flags, held, ms)
    else:
        sent = map(InFlight, refs, repeat(flags), repeat(held), repeat(ms))
        state.inflight.update(zip(pids, sent, strict=False))
    held.outstanding += len(pids)
    state.last_pid = pids[-1]
    if event.queued >= 0:
        _leave_queue(state, held, len(pids), event.queued)


def _queued(state: SessionState, event: Queued, _at: Position, _ms: int) -> None:
    held = state.subscription(event.filter)
    flags = event.qos | event.retain << 2
    if held.queue is None:
        held.queue = WaitingQueue()
    if event.behind < 0:
        state.queued += held.queue.extend(event.refs, flags, event.expires)
    else:
        state.queued += held.queue.insert(event.behind, event.refs, flags, event.expires)
    state.own_waiting()[held.filter] = held
    state.queued_bytes += event.size
    held.queued_bytes += event.size


def _dropped(state: SessionState, event: MessageDropped, _at: Position, _ms: int) -> None:
    if event.reason == LOST:
        _lost(state, event)
        return
    if event.queued >= 0:
        held = state.subscription(event.filter)
        _leave_queue(state, held, event.count, event.queued)
        _forget_if_done(state, held)


def _lost(state: SessionState, event: MessageDropped) -> None:
    refs = set(from_runs(event.refs))
    held = state.subscriptions.get(event.filter)
    if held is None:  # messages that the client has published
        for pid in [pid for pid, ref in state.inbound.items() if ref in refs]:
            del state.inbound[pid]
        return
    if event.queued >= 0 and held.queue is not None:
        count = held.queue.remove(refs, expiring=False)
        _left_queue(state, held, count, event.queued)
    sent = state.inflight.items()
    complete(
        state,
        state.inflight,
        [pid for pid, delivery in sent if delivery.subscription is held and delivery.ref in refs],
    )
    _forget_if_done(state, held)


def settle(state: SessionState, event: Event) -> None:
    """Prepare a state that lacks lost events for a later event of its session.

    The event removes messages from the head of a queue, or replaces or completes deliveries; some
    of these may be elsewhere in the state, or unknown.
    """
    kind = type(event)
    if kind is Delivered or kind is Assigned or kind is MessageDropped:
        if event.queued >= 0 and event.refs:  # type: ignore[union-attr] # all three have them
            _bring_forward(state, event)  # type: ignore[arg-type]
        if kind is Delivered:
            for table in (state.inflight, state.releasing):
                complete(state, table, [pid for pid in from_runs(event.pids) if pid in table])  # type: ignore[union-attr]
    elif kind is Expired:
        held = state.subscriptions.get(event.filter)  # type: ignore[union-attr]
        if held is not None:
            _have_bytes(state, held, event.size)  # type: ignore[union-attr]
    elif kind is Completed:
        complete(state, state.inflight, from_runs(event.pids))  # type: ignore[union-attr]


def _bring_forward(state: SessionState, event: Delivered | Assigned | MessageDropped) -> None:
    """Put messages at the head of the queue from which an event removes them."""
    refs = from_runs(event.refs)
    name = event.session.split("/", 2)[-1] if isinstance(event, Assigned) else event.filter
    held = state.subscription(name)
    queue = held.queue if held.queue is not None else WaitingQueue()
    count = queue.remove(refs, expiring=False)
    held.queue = WaitingQueue()
    held.queue.extend(event.refs, 1)
    state.queued += len(refs) - count
    if queue:
        held.queue.append(queue)
        _have_bytes(state, held, event.queued)
    else:  # nothing is left behind them
        state.queued_bytes += event.queued - held.queued_bytes
        held.queued_bytes = event.queued
    state.own_waiting()[held.filter] = held


def _have_bytes(state: SessionState, held: SubscriptionState, size: int) -> None:
    """Add to the bytes of a queue if fewer are known than an event removes."""
    more = max(0, size - held.queued_bytes)
    held.queued_bytes += more
    state.queued_bytes += more


def _expired(state: SessionState, event: Expired, _at: Position, _ms: int) -> None:
    held = state.subscription(event.filter)
    count = held.queue.remove(from_runs(event.refs)) if held.queue is not None else 0
    _left_queue(state, held, count, event.size)
    _forget_if_done(state, held)


def _assigned(state: SessionState, event: Assigned, _at: Position, _ms: int) -> None:
    if event.queued >= 0:
        held = state.subscription(event.session.split("/", 2)[-1])
        _leave_queue(state, held, count_runs(event.refs), event.queued)
        _forget_if_done(state, held)


def _redelivered(state: SessionState, event: Redelivered, _at: Position, ms: int) -> None:
    for pid in from_runs(event.pids):
        for table in (state.inflight, state.releasing):
            sent = table.get(pid)
            if sent is not None:
                table[pid] = sent._replace(sent_ms=ms)


def complete(state: SessionState, table: dict[int, InFlight], pids: Iterable[int]) -> None:
    """Remove completed deliveries from a table."""
    for pid in pids:
        sent = table.pop(pid, None)
        if sent is not None:
            held = sent.subscription
            held.outstanding -= 1
            if not held.active:
                _forget_if_done(state, held)


def _acked(state: SessionState, event: Acked | Refused | Returned, _at: Position, _ms: int) -> None:
    complete(state, state.inflight, from_runs(event.pids))


def _received(state: SessionState, event: Received, _at: Position, ms: int) -> None:
    for pid in from_runs(event.pids):
        sent = state.inflight.pop(pid, None)
        if sent is not None:
            state.own_releasing()[pid] = sent._replace(sent_ms=ms)


def _completed(state: SessionState, event: Completed, _at: Position, _ms: int) -> None:
    complete(state, state.releasing, from_runs(event.pids))


def _will_armed(state: SessionState, event: WillArmed, at: Position, _ms: int) -> None:
    state.will = Will(event.topic, event.qos, event.retain, at, event.delay)


def _will_gone(
    state: SessionState, _event: WillFired | WillCancelled, _at: Position, _ms: int
) -> None:
    state.will = None


EVOLVE: dict[type, Callable[[SessionState, Any, Position, int], None]] = {
    SessionOpened: _opened,
    SessionTakenOver: _nothing,
    SessionClosed: _closed,
    Subscribed: _subscribed,
    SubscriptionDenied: _nothing,
    Unsubscribed: _unsubscribed,
    ReplayOpened: _replay_opened,
    ReplayReached: _replay_reached,
    MessagePublished: _published,
    Released: _released,
    Delivered: _delivered,
    Queued: _queued,
    Redelivered: _redelivered,
    Acked: _acked,
    Received: _received,
    Refused: _acked,
    Completed: _completed,
    Expired: _expired,
    Assigned: _assigned,
    Returned: _acked,
    InboundReplaced: _released,
    WillArmed: _will_armed,
    WillFired: _will_gone,
    WillCancelled: _will_gone,
    MessageDropped: _dropped,
}
"""The functions that :func:`evolve` calls, for callers that already know the event's type."""


def evolve(state: SessionState, event: Event, at: Position, time_ms: int) -> None:
    """Apply one of the session's events to its state.

    ``at`` is the position of the event's first entry, ``time_ms`` the time of its record.
    """
    EVOLVE[type(event)](state, event, at, time_ms)
