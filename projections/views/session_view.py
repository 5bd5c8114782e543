"""A session as typed rows: from its state, now or in the past, and with what a broker adds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from eventstore.format.positions import Position
from projections.state.waiting_queue import FLAG_BITS, QOS_MASK, RETAIN_FLAG
from projections.views.replay_view import ReplayView, replay_view
from protocol.mqtt.shared_filters import SHARE

if TYPE_CHECKING:
    from projections.state.session import InFlight, SessionState, SubscriptionState

Row = TypeVar("Row")
Message = TypeVar("Message", bound="MessageView")

_OLDEST = 3
"""Waiting messages of a subscription that are named; a running broker names one."""


class Published(NamedTuple):
    """The known facts of a published message, without its payload."""

    topic: str
    size: int
    """Size of the payload in bytes."""
    time_ms: int | None = None
    """Time of the record (Unix, milliseconds); None: unknown, since a repetition does not have
    it."""
    client: str | None = None
    """The session that published it; None: unknown, for the same reason."""
    copied_ms: int | None = None
    """Time of a checkpoint's copy, if only that is known: the message is older."""


class Topics(Protocol):
    """Known messages by position."""

    def get(self, ref: Position) -> Published | None:
        """Return the known facts of a message; None if it is not loaded."""


@dataclass(frozen=True, slots=True)
class Part(Generic[Row]):
    """Some rows of a list."""

    total: int
    rows: Sequence[Row]


@dataclass(frozen=True, slots=True)
class MessageView:
    """A message; what is not known is None."""

    position: Position
    topic: str | None = None
    size: int | None = None
    published_ms: int | None = None


@dataclass(frozen=True, slots=True)
class InboundView(MessageView):
    """A QoS 2 message from the client whose PUBREL is awaited."""

    packet_id: int = 0


@dataclass(frozen=True, slots=True)
class DeliveryView(InboundView):
    """A delivery that the client has not completed."""

    qos: int = 0
    retain: bool = False
    filter: str = ""
    sent_ms: int = 0
    """Time of the last transmission."""


@dataclass(frozen=True, slots=True)
class SubscriptionView:
    """A subscription, and the messages that wait in it."""

    filter: str
    qos: int | None
    """None: each member of a shared subscription has its own."""
    options: int
    """Subscription options of MQTT 5, see ``Subscribed``."""
    identifier: int
    active: bool
    outstanding: int
    window: int | None
    """Largest number of outstanding deliveries, if a running broker reports it."""
    queued: int
    queued_bytes: int
    oldest: Sequence[MessageView] = ()
    """The next few of the waiting messages."""
    replay: ReplayView | None = None
    """How far it has read, if it reads the log."""


@dataclass(frozen=True, slots=True)
class MemberView:
    """A member of a shared subscription."""

    session: str
    connected: bool
    qos: int | None
    outstanding: int
    window: int | None = None
    options: int = 0
    identifier: int = 0
    active: bool = True


@dataclass(frozen=True, slots=True)
class WillView:
    """An armed will."""

    topic: str
    qos: int
    retain: bool
    delay: int
    """Seconds after the end of the connection."""
    position: Position


@dataclass(frozen=True, slots=True)
class SessionView:
    """A session in full, or with a part of each of its lists."""

    session: str
    connected: bool
    clean: bool
    closed_ms: int | None
    """End of the last connection; None while connected."""
    generation: int
    level: int
    bridge: bool
    expiry: int | None
    user: str | None
    receive_maximum: int
    packet_maximum: int
    last_packet_id: int
    queued: int
    queued_bytes: int
    oldest: MessageView | None
    """The message that waits longest."""
    will: WillView | None
    subscriptions: Part[SubscriptionView]
    in_flight: Part[DeliveryView]
    releasing: Part[DeliveryView]
    inbound: Part[InboundView]
    members: Part[MemberView] | None = None
    """Those of a shared subscription; None if it is none, or they were not looked up."""
    unsure: str | None = field(default=None, compare=False)
    """Why its state is not certain; None: it is."""
    live: Mapping[str, Any] | None = field(default=None, compare=False)
    """What only a running broker knows, see ``docs/inspector.md``."""

    @property
    def shared(self) -> bool:
        """Whether it is the session of a shared subscription."""
        return self.session.startswith(SHARE)

    @property
    def sent(self) -> int:
        """Number of deliveries that the client has not completed."""
        return self.in_flight.total + self.releasing.total

    def messages(self) -> Iterator[MessageView]:
        """Yield the messages of the view, those that wait longest first."""
        if self.oldest is not None:
            yield self.oldest
        yield from chain(self.in_flight.rows, self.releasing.rows, self.inbound.rows)
        for row in self.subscriptions.rows:
            yield from row.oldest


@dataclass(frozen=True, slots=True)
class LiveSession:
    """What only a running broker knows about a session."""

    window: int
    granted_qos: Callable[[SubscriptionState], int]
    topic: Callable[[Position], str | None]
    facts: Mapping[str, Any]


def session_view(
    state: SessionState,
    live: LiveSession | None = None,
    *,
    jumped_ms: int = 0,
    offset: int = 0,
    most: int | None = None,
    members: Part[MemberView] | None = None,
    last: int | None = None,
    unsure: str | None = None,
) -> SessionView:
    """Return a session; its lists have ``most`` items, None: all, from ``offset`` on.

    ``jumped_ms`` is the sum of the jumps of the clock, which times in states do not include.
    ``last`` is the last record of the log at that moment; None: not known. ``unsure`` says why its
    state is not certain.
    """
    topic = live.topic if live is not None else _unknown
    end = None if most is None else offset + most

    def part(items: Collection[Any], row: Callable[[Any], Row]) -> Part[Row]:
        return Part(len(items), [row(item) for item in islice(items, offset, end)])

    def subscription(held: SubscriptionState) -> SubscriptionView:
        qos: int | None = None if held.filter == state.session else held.qos
        row = subscription_row(held, qos if live is None else live.granted_qos(held), live)
        if held.replay is not None:
            row = replace(row, replay=replay_view(held.replay, jumped_ms, last))
        return row

    def delivery(item: tuple[int, InFlight]) -> DeliveryView:
        packet_id, sent = item
        return DeliveryView(
            sent.ref,
            topic(sent.ref),
            packet_id=packet_id,
            qos=sent.flags & QOS_MASK,
            retain=bool(sent.flags & RETAIN_FLAG),
            filter=sent.subscription.filter,
            sent_ms=sent.sent_ms + jumped_ms,
        )

    def inbound(item: tuple[int, Position]) -> InboundView:
        return InboundView(item[1], topic(item[1]), packet_id=item[0])

    queues = [held.queue.ends() for held in state.waiting.values() if held.queue is not None]
    oldest = min((ends[0] >> FLAG_BITS for ends in queues if ends is not None), default=None)
    will = state.will
    return SessionView(
        state.session,
        state.connected,
        state.clean,
        None if state.connected else state.closed_ms + jumped_ms,
        state.generation,
        state.level,
        state.bridge,
        state.expiry,
        state.user,
        state.receive_maximum,
        state.packet_maximum,
        state.last_pid,
        state.queued,
        state.queued_bytes,
        None if oldest is None else MessageView(oldest, topic(oldest)),
        will and WillView(will.topic, will.qos, will.retain, will.delay, will.ref),
        part(state.subscriptions.values(), subscription),
        part(state.inflight.items(), delivery),
        part(state.releasing.items(), delivery),
        part(state.inbound.items(), inbound),
        members,
        unsure,
        None if live is None else live.facts,
    )


def subscription_row(
    held: SubscriptionState, qos: int | None, live: LiveSession | None = None
) -> SubscriptionView:
    """Return a subscription with the QoS that was granted."""
    topic = live.topic if live is not None else _unknown
    count = _OLDEST if live is None else 1
    heads = [waiting >> FLAG_BITS for waiting in islice(held.queue or (), count)]
    return SubscriptionView(
        held.filter,
        qos,
        held.options,
        held.identifier,
        held.active,
        held.outstanding,
        None if live is None else live.window,
        len(held.queue or ()),
        held.queued_bytes,
        [MessageView(head, topic(head)) for head in heads],
    )


def _unknown(_ref: Position) -> str | None:
    return None


def members_of(group: str, sessions: Iterable[SessionState]) -> Part[MemberView]:
    """Return the members of a shared subscription, looked up in all sessions of its log."""
    rows = [
        MemberView(
            state.session,
            state.connected,
            held.qos,
            held.outstanding,
            options=held.options,
            identifier=held.identifier,
            active=held.active,
        )
        for state in sessions
        if state.session != group and (held := state.subscriptions.get(group)) is not None
    ]
    return Part(len(rows), rows)


def with_messages(view: SessionView, topics: Topics) -> SessionView:
    """Return a view with topics, sizes and times of its messages, as far as ``topics`` has them."""

    def known(row: Message) -> Message:
        about = topics.get(row.position)
        if about is None:
            return row
        return replace(row, topic=about.topic, size=about.size, published_ms=about.time_ms)

    def part(rows: Part[Message]) -> Part[Message]:
        return Part(rows.total, [known(row) for row in rows.rows])

    held = view.subscriptions
    return replace(
        view,
        oldest=view.oldest and known(view.oldest),
        subscriptions=Part(
            held.total,
            [replace(row, oldest=[known(each) for each in row.oldest]) for row in held.rows],
        ),
        in_flight=part(view.in_flight),
        releasing=part(view.releasing),
        inbound=part(view.inbound),
    )


def session_from(answer: Mapping[str, Any]) -> SessionView:
    """Return a session that a broker reported, see :func:`projections.views.vocabulary.plain`.

    Keys of a later version are left out of its rows; fields that an earlier version does not have
    get their default. Values are not converted: what is null in the answer is None.
    """
    own = {name: answer[name] for name in _names(SessionView) & answer.keys()}
    for name, kind in _PARTS.items():
        if own.get(name) is not None:
            rows = [_row(kind, row) for row in own[name]["rows"]]
            own[name] = Part(own[name]["total"], rows)
    for name, single in (("oldest", MessageView), ("will", WillView)):
        if own[name] is not None:
            own[name] = _row(single, own[name])
    live = {name: value for name, value in answer.items() if name not in own}
    return SessionView(**own, live=live)


_PARTS: dict[str, type[Any]] = {
    "subscriptions": SubscriptionView,
    "in_flight": DeliveryView,
    "releasing": DeliveryView,
    "inbound": InboundView,
    "members": MemberView,
}


def _row(kind: type[Row], values: Mapping[str, Any]) -> Row:
    """Return a row; keys of a later version are left out."""
    own = {name: values[name] for name in _names(kind) & values.keys()}
    if kind is SubscriptionView:
        own["oldest"] = [_row(MessageView, message) for message in own.get("oldest", ())]
        if own.get("replay") is not None:
            own["replay"] = _row(ReplayView, own["replay"])
    return kind(**own)


def _names(kind: type[Any]) -> set[str]:
    return {column.name for column in fields(kind)}
