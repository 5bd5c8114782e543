"""Events that never happened, put into a sound log where they are plausible.

Each kind is looked for after every turn of the log: where the state of the sessions then admits
such an event, it may be put there, in a turn of its own or as part of that turn. Both are done at
the last of these places, and one or the other at places that a fixed seed chooses.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeAlias

from soundlog import GROUP, LIMITS, Forged, opened, opened5, sound_log

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
    RetainedExpired,
    Returned,
    SessionClosed,
    SessionExpired,
    SessionOpened,
    SessionTakenOver,
    Subscribed,
    SubscriptionDenied,
    Unsubscribed,
    WillArmed,
    WillCancelled,
    WillFired,
)
from eventstore.format.node_events import (
    Bridged,
    BrokerStarted,
    BrokerStopped,
    CheckpointBegun,
    CheckpointCompleted,
    Followed,
    LeaderProved,
    LimitsApplied,
    LogArchived,
    LogCut,
    MessagesCarried,
    OperatorActed,
    RetainedCleared,
    RetainedSnapshot,
    SessionSnapshot,
    WebAccessed,
)
from eventstore.format.positions import Position, from_runs, position
from eventstore.format.records import Record, decode_record
from eventstore.format.turn_parts import TurnAssembler
from eventstore.reasons import DROP_REASONS
from projections.state.session import SessionState, SubscriptionState
from projections.state.single_session import SessionFold
from projections.state.snapshot import encode_session
from protocol.mqtt.topics import matches

PLACES: Final = 5
"""How many places are tried for each kind."""
_UNUSED: Final = 777
"""A packet identifier that is not in flight anywhere."""
_BEYOND: Final = position(5000, 0)
"""A position behind the end of the log."""

Told: TypeAlias = "Event | tuple[Event, list[bytes]]"
"""An event, or one with its payloads."""


class Message(NamedTuple):
    """A message of the log."""

    ref: Position
    topic: str
    qos: int
    at: Position
    """Where it took effect; 0: it waits for its PUBREL."""
    payload: bytes


class Moment:
    """What there is behind a turn of the sound log."""

    def __init__(self) -> None:
        self.number = -1
        """Number of the turn."""
        self.record: Record
        """Its last record."""
        self.folds: dict[str, SessionFold] = {}
        self.messages: dict[Position, Message] = {}
        self.taken: set[tuple[str, Position]] = set()
        """Session and message of deliveries."""
        self.retained: dict[str, Message] = {}
        self.since: dict[tuple[str, str], Position] = {}
        """Session and filter -> where it was subscribed to."""
        self.assigned: list[tuple[str, Position]] = []
        """Member and message, of the shared subscription."""
        self.checkpoints: list[tuple[Position, Record]] = []
        """Those that were begun."""
        self.completed = 0

    def follow(self, number: int, turn: list[Record]) -> None:
        """Go on behind a turn."""
        self.number = number
        for record in turn:
            self.record = record
            for index, event in record.events():
                self._take(event, position(record.sequence, index), record)

    def _take(self, event: Event, at: Position, record: Record) -> None:
        name = getattr(event, "session", None)
        if name is not None and not isinstance(event, (OperatorActed, RetainedSnapshot)):
            self.folds.setdefault(name, SessionFold(name)).take(event, at, record.time_ms)
        if isinstance(event, (CheckpointBegun, CheckpointCompleted)):
            self.checkpoints += [(at, record)] * isinstance(event, CheckpointBegun)
            self.completed += isinstance(event, CheckpointCompleted)
        elif isinstance(event, (RetainedExpired, RetainedCleared, RetainedSnapshot)):
            self._take_retained(event, at)
        else:
            self._take_message(event, at, record)

    def _take_message(self, event: Event, at: Position, record: Record) -> None:
        match event:
            case MessagePublished():
                waits = event.qos == 2 and not event.will
                for number in range(event.count):
                    payload = bytes(record.payload[event.at + 4 * number :][:4])
                    ref = at + number
                    one = Message(ref, event.topics[0], event.qos, 0 if waits else ref, payload)
                    self.messages[ref] = one
                    if event.retain and not waits:
                        self.retained[one.topic] = one
            case Released():
                for number, ref in enumerate(from_runs(event.refs)):
                    one = self.messages[ref] = self.messages[ref]._replace(at=at + number)
                    if one.topic == "kept":
                        self.retained[one.topic] = one
            case Subscribed():
                self.since |= {(event.session, name): at for name, _ in event.filters}
            case Delivered() | Queued():
                self.taken |= {(event.session, ref) for ref in from_runs(event.refs)}
            case Assigned():
                self.assigned += [(event.member, ref) for ref in from_runs(event.refs)]

    def _take_retained(
        self, event: RetainedExpired | RetainedCleared | RetainedSnapshot, at: Position
    ) -> None:
        if not isinstance(event, RetainedSnapshot):
            for topic in event.topics:
                self.retained.pop(topic)
        elif event.session is None:
            for number, topic in enumerate(event.topics):
                self.retained[topic] = self.retained[topic]._replace(ref=at + number)

    # What there is.

    @property
    def is_in_checkpoint(self) -> bool:
        """Whether a checkpoint was begun and is not complete."""
        return len(self.checkpoints) > self.completed

    @property
    def states(self) -> list[SessionState]:
        """The sessions that there are, other than shared subscriptions."""
        found = (fold.state for fold in self.folds.values())
        return [one for one in found if one is not None and one.session != GROUP]

    @property
    def connected(self) -> list[SessionState]:
        """Those with a connection."""
        return [one for one in self.states if one.connected]

    @property
    def away(self) -> list[SessionState]:
        """Those without a connection."""
        return [one for one in self.states if not one.connected]

    def sent(self, qos: int) -> Iterator[tuple[str, int]]:
        """Yield session and packet identifier of each delivery in flight at a QoS."""
        for state in self.connected:
            for pid, one in state.inflight.items():
                if one.flags & 3 == qos:
                    yield state.session, pid

    def held(self, *, connected: bool = True) -> Iterator[tuple[SessionState, SubscriptionState]]:
        """Yield the subscriptions at QoS 1 or 2, other than shared ones."""
        for state in self.connected if connected else self.away:
            for one in state.active():
                if one.qos and one.filter != GROUP:
                    yield state, one


class Kind(NamedTuple):
    """A kind of forged event."""

    event: str
    """Type of the event."""
    what: str
    makes: Callable[[Moment], Iterator[list[Any]]]
    """Yields what may be forged at a moment."""
    untold: str
    """Why no audit finds it everywhere, a key of ``mutants.WHY``; empty: it is found."""


KINDS: Final[list[Kind]] = []


def forges(event: type, what: str, untold: str = "") -> Callable[[Any], Any]:
    """Declare a function as one that forges events of a type."""

    def declare(makes: Any) -> Any:
        KINDS.append(Kind(event.__name__, what, makes, untold))
        return makes

    return declare


# ------------------------------------------------------------------------------ acknowledgements


def _answers(event: type, qos: int, **given: Any) -> Any:
    def makes(moment: Moment) -> Iterator[list[Told]]:
        for session, pid in moment.sent(qos):
            yield [event(session, [pid], **given)]

    return makes


def _answers_nothing(event: type, **given: Any) -> Any:
    def makes(moment: Moment) -> Iterator[list[Told]]:
        for state in moment.connected:
            yield [event(state.session, [_UNUSED], **given)]

    return makes


def _completes(moment: Moment) -> Iterator[list[Told]]:
    for state in moment.connected:
        for pid in state.releasing:
            yield [Completed(state.session, [pid])]


forges(Acked, "of a delivery in flight", "b")(_answers(Acked, 1))
forges(Acked, "of a QoS 2 delivery")(_answers(Acked, 2))
forges(Acked, "of what is not in flight")(_answers_nothing(Acked))
forges(Received, "of a delivery in flight", "b")(_answers(Received, 2))
forges(Received, "of a QoS 1 delivery")(_answers(Received, 1))
forges(Received, "of what is not in flight")(_answers_nothing(Received))
forges(Refused, "of a delivery in flight", "b")(_answers(Refused, 2, reasons=[0x83]))
forges(Refused, "of a QoS 1 delivery")(_answers(Refused, 1, reasons=[0x83]))
forges(Refused, "of what is not in flight")(_answers_nothing(Refused, reasons=[0x83]))
forges(Completed, "of a delivery that was received", "b")(_completes)
forges(Completed, "of a delivery that was not received")(_answers(Completed, 2))
forges(Completed, "of what is not in flight")(_answers_nothing(Completed))
forges(Redelivered, "of a delivery in flight", "d")(_answers(Redelivered, 1, cause="ack_wait"))
forges(Redelivered, "as resumed, without a reconnect")(_answers(Redelivered, 2, cause="resumed"))
forges(Redelivered, "of what is not in flight")(_answers_nothing(Redelivered, cause="ack_wait"))


# --------------------------------------------------------------------------------------- replays


def _reads(through: int, sent: int = 0) -> Any:
    """Return a maker of cursors relative to the last one."""

    def makes(moment: Moment) -> Iterator[list[Told]]:
        for state in moment.connected:
            for name, held in state.replays.items():
                if held.replay is not None:
                    place = held.replay.through[""] + through
                    yield [ReplayReached(state.session, name, {"": place}, sent=sent)]

    return makes


@forges(ReplayReached, "of no replay")
def _reads_nothing(moment: Moment) -> Iterator[list[Told]]:
    for state, held in moment.held():
        if not state.replays:
            yield [ReplayReached(state.session, held.filter, {"": 1})]


@forges(ReplayOpened, "of an ordinary subscription")
def _opens(moment: Moment) -> Iterator[list[Told]]:
    for state, held in moment.held():
        if not state.replays:
            yield [ReplayOpened(state.session, held.filter, {})]


@forges(ReplayOpened, "again")
def _opens_again(moment: Moment) -> Iterator[list[Told]]:
    for state in moment.connected:
        for name in state.replays:
            yield [ReplayOpened(state.session, name, {})]


@forges(ReplayOpened, "without a subscription")
def _opens_alone(moment: Moment) -> Iterator[list[Told]]:
    for state in moment.connected:
        yield [ReplayOpened(state.session, "$replay/all/x", {})]


forges(ReplayReached, "of more messages")(_reads(0, 1))
forges(ReplayReached, "of an earlier position")(_reads(-1))


# ------------------------------------------------------------------------------------ deliveries


def _sends(
    state: SessionState, held: SubscriptionState, ref: Position, pid: int = _UNUSED, **given: Any
) -> list[Told]:
    return [Delivered(state.session, held.filter, 1, [pid], [ref], **given)]


@forges(Delivered, "of a message of the topic that was delivered before")
def _again(moment: Moment) -> Iterator[list[Told]]:
    for state, held in moment.held():
        for one in moment.messages.values():
            if matches(held.filter, one.topic) and (state.session, one.ref) in moment.taken:
                yield _sends(state, held, one.ref)


@forges(Delivered, "of a message that was published before its subscription")
def _older(moment: Moment) -> Iterator[list[Told]]:
    for state, held in moment.held():
        for one in moment.messages.values():
            early = one.at < moment.since[state.session, held.filter]
            known = (state.session, one.ref) in moment.taken
            if matches(held.filter, one.topic) and early and not known:
                yield _sends(state, held, one.ref)


@forges(Delivered, "of a message of another topic")
def _of_another_topic(moment: Moment) -> Iterator[list[Told]]:
    for state, held in moment.held():
        for one in [*moment.messages.values()][-1:]:
            if not matches(held.filter, one.topic):
                yield _sends(state, held, one.ref)


@forges(Delivered, "of an unknown message")
def _of_nothing(moment: Moment) -> Iterator[list[Told]]:
    for state, held in moment.held():
        yield _sends(state, held, _BEYOND)


@forges(Delivered, "of a message that was not released")
def _unreleased(moment: Moment) -> Iterator[list[Told]]:
    for state, held in moment.held():
        for one in moment.messages.values():
            if not one.at:
                yield _sends(state, held, one.ref)


@forges(Delivered, "of a retained message, without a new subscription")
def _retained(moment: Moment) -> Iterator[list[Told]]:
    for state, held in moment.held():
        for one in moment.retained.values():
            if matches(held.filter, one.topic):
                yield _sends(state, held, one.ref, retain=True)


@forges(Delivered, "under an identifier in flight")
def _in_flight(moment: Moment) -> Iterator[list[Told]]:
    for state, held in moment.held():
        for pid, one in state.inflight.items():
            yield _sends(state, held, one.ref, pid)


@forges(Delivered, "of a waiting message, to a client that is away")
def _while_away(moment: Moment) -> Iterator[list[Told]]:
    for state, held in moment.held(connected=False):
        if held.queue:
            yield _sends(state, held, next(iter(held.queue)) >> 4, queued=4)


@forges(Delivered, "to a member of the shared subscription, which did not assign it")
def _unassigned(moment: Moment) -> Iterator[list[Told]]:
    for state in moment.connected:
        for one in moment.messages.values():
            if GROUP in state.subscriptions and matches("g/t", one.topic):
                yield [Delivered(state.session, GROUP, 1, [_UNUSED], [one.ref])]


@forges(Queued, "of a message of the topic that was delivered before")
def _waits_again(moment: Moment) -> Iterator[list[Told]]:
    for session, held in (*moment.held(), *moment.held(connected=False)):
        for one in moment.messages.values():
            if matches(held.filter, one.topic) and (session.session, one.ref) in moment.taken:
                yield [Queued(session.session, held.filter, 1, [one.ref], 4)]


@forges(Queued, "of a message of another topic")
def _waits_for_another(moment: Moment) -> Iterator[list[Told]]:
    for session, held in (*moment.held(), *moment.held(connected=False)):
        for one in [*moment.messages.values()][-1:]:
            if not matches(held.filter, one.topic):
                yield [Queued(session.session, held.filter, 1, [one.ref], 4)]


@forges(Queued, "of a retained message, without a new subscription")
def _waits_retained(moment: Moment) -> Iterator[list[Told]]:
    for session, held in moment.held(connected=False):
        for one in moment.retained.values():
            yield [Queued(session.session, held.filter, 1, [one.ref], 4, retain=True)]


@forges(Queued, "of a message that the shared subscription had assigned")
def _waits_for_members(moment: Moment) -> Iterator[list[Told]]:
    for _, ref in moment.assigned:
        yield [Queued(GROUP, "g/t", 1, [ref], 4, behind=0)]


@forges(Expired, "of a waiting message before its time")
def _expires(moment: Moment) -> Iterator[list[Told]]:
    for state in moment.away:
        for held in state.waiting.values():
            refs = [one >> 4 for one in held.queue or ()]
            yield [Expired(state.session, held.filter, refs[:1], 4)]


@forges(Expired, "of a message that does not wait")
def _expires_unseen(moment: Moment) -> Iterator[list[Told]]:
    for state, held in moment.held():
        for one in moment.messages.values():
            if (state.session, one.ref) in moment.taken:
                yield [Expired(state.session, held.filter, [one.ref], 4)]


def _drops(reason: str, how: str) -> Any:
    def makes(moment: Moment) -> Iterator[list[Told]]:
        for state, held in (*moment.held(), *moment.held(connected=False)):
            session, filter_ = state.session, held.filter
            if how == "none":
                yield [MessageDropped(session, reason, 1)]
            elif how == "queued" and held.queue:
                first = next(iter(held.queue)) >> 4
                yield [MessageDropped(session, reason, 1, [first], filter_, held.queued_bytes)]
            elif how == "known":
                for one in moment.messages.values():
                    if (session, one.ref) in moment.taken and matches(filter_, one.topic):
                        yield [MessageDropped(session, reason, 1, [one.ref], filter_)]
            elif how == "other":
                for one in [*moment.messages.values()][-1:]:
                    if not matches(filter_, one.topic):
                        yield [MessageDropped(session, reason, 1, [one.ref], filter_)]

    return makes


_UNTOLD_DROPS: Final = {"not_permitted": "k"} | dict.fromkeys(
    (
        *("slow_reader", "reserved_topic", "topic_levels", "packet_too_large", "payload_format"),
        "personal_keys",
    ),
    "l",
)
for _reason in DROP_REASONS:
    forges(
        MessageDropped,
        f"`{_reason}`, of no message in the log",
        _UNTOLD_DROPS.get(_reason, ""),
    )(_drops(_reason, "none"))
    forges(MessageDropped, f"`{_reason}`, of a delivered message")(_drops(_reason, "known"))
    forges(MessageDropped, f"`{_reason}`, of a waiting message")(_drops(_reason, "queued"))
    forges(MessageDropped, f"`{_reason}`, of another topic")(_drops(_reason, "other"))


@forges(MessageDropped, "`reserved_topic`, on a topic that is not reserved")
def _drops_unreserved(moment: Moment) -> Iterator[list[Told]]:
    for state in moment.connected:
        yield [MessageDropped(state.session, "reserved_topic", 1, topics=["t"])]


@forges(MessageDropped, "`topic_levels`, on a topic with few of them")
def _drops_flat(moment: Moment) -> Iterator[list[Told]]:
    for state in moment.connected:
        yield [MessageDropped(state.session, "topic_levels", 1, topics=["t/u"])]


@forges(MessageDropped, "`slow_reader`, on a topic that its filter does not match")
def _drops_unmatched(moment: Moment) -> Iterator[list[Told]]:
    for state, held in moment.held():
        yield [MessageDropped(state.session, "slow_reader", 1, filter=held.filter, topics=["x/x"])]


# ------------------------------------------------------------------------------- what is published


def _publishes(
    topic: str, qos: int = 1, *, retain: bool = False, away: bool = False, **given: Any
) -> Any:
    def makes(moment: Moment) -> Iterator[list[Told]]:
        for state in moment.away if away else moment.connected:
            pids = [_UNUSED] if qos and not given.get("will") else []
            event = MessagePublished(
                state.session, qos, retain, [topic], [], pids, 4, 0, 1, **given
            )
            yield [(event, [b"made"])]

    return makes


forges(MessagePublished, "at QoS 1, to subscribers")(_publishes("t"))
forges(MessagePublished, "at QoS 1, on a topic without subscribers", "b")(_publishes("nobody"))
forges(MessagePublished, "at QoS 2, but never released", "b")(_publishes("t", 2))
forges(MessagePublished, "retained, on another topic", "b")(_publishes("new", 0, retain=True))
forges(MessagePublished, "retained, on a topic with a retained message", "b")(
    _publishes("w/1", 0, retain=True)
)
forges(MessagePublished, "by a client that is away")(_publishes("nobody", away=True))
forges(MessagePublished, "as a will")(_publishes("nobody", will=True))


@forges(MessagePublished, "at QoS 2, under an identifier in use")
def _reuses(moment: Moment) -> Iterator[list[Told]]:
    for state in moment.connected:
        for pid in state.inbound:
            event = MessagePublished(state.session, 2, False, ["nobody"], [], [pid], 4, 0, 1)
            yield [(event, [b"made"])]


@forges(MessagePublished, "by an unknown client")
def _published_by_nobody(_moment: Moment) -> Iterator[list[Told]]:
    event = MessagePublished("mallory", 1, False, ["nobody"], [], [1], 4, 0, 1)
    yield [(event, [b"made"])]


@forges(Released, "of a message that waits for its PUBREL", "b")
def _releases(moment: Moment) -> Iterator[list[Told]]:
    for state in moment.connected:
        for pid, ref in state.inbound.items():
            yield [Released(state.session, [pid], [ref])]


@forges(InboundReplaced, "of a message that waits for its PUBREL", "b")
def _replaces(moment: Moment) -> Iterator[list[Told]]:
    for state in moment.connected:
        for pid, ref in state.inbound.items():
            yield [InboundReplaced(state.session, [pid], [ref])]


@forges(InboundReplaced, "of a message that does not wait")
def _replaces_nothing(moment: Moment) -> Iterator[list[Told]]:
    for state in moment.connected:
        for one in moment.messages.values():
            if one.qos == 2 and one.at:
                yield [InboundReplaced(state.session, [_UNUSED], [one.ref])]


@forges(Released, "of a message that was released before")
def _releases_again(moment: Moment) -> Iterator[list[Told]]:
    for state in moment.connected:
        for one in moment.messages.values():
            if one.qos == 2 and one.at:
                yield [Released(state.session, [_UNUSED], [one.ref])]


# ---------------------------------------------------------------------------------------- sessions


@forges(SessionOpened, "of a client that is away")
def _comes_back(moment: Moment) -> Iterator[list[Told]]:
    for state in moment.away:
        made = opened5 if state.level == 5 else opened
        yield [made(state.session, state.generation + 1)]


@forges(SessionOpened, "of a client that is away, with an empty session")
def _comes_back_empty(moment: Moment) -> Iterator[list[Told]]:
    for state in moment.away:
        made = opened5 if state.level == 5 else opened
        yield [replace(made(state.session, state.generation + 1), resumed=False)]


@forges(SessionOpened, "of a connected client")
def _comes_twice(moment: Moment) -> Iterator[list[Told]]:
    for state in moment.connected:
        made = opened5 if state.level == 5 else opened
        yield [made(state.session, state.generation + 1)]


@forges(SessionOpened, "of an unknown client", "b")
def _stranger(_moment: Moment) -> Iterator[list[Told]]:
    yield [opened("mallory")]


@forges(SessionOpened, "of an unknown client, with a session")
def _other_user_with_a_session(_moment: Moment) -> Iterator[list[Told]]:
    yield [replace(opened("mallory"), resumed=True)]


def _closes(reason: str, *more: Any) -> Any:
    def makes(moment: Moment) -> Iterator[list[Told]]:
        for state in moment.connected:
            before = [replace(one, session=state.session) for one in more]
            yield [*before, SessionClosed(state.session, reason, state.generation)]

    return makes


for _reason in ("disconnect", "error", "broker_stopped", "broker_restarted", "kicked"):
    forges(SessionClosed, f"`{_reason}`")(_closes(_reason))


@forges(SessionClosed, "`taken_over`, with SessionTakenOver and no other connection")
def _taken_over(moment: Moment) -> Iterator[list[Told]]:
    for state in moment.connected:
        number = state.generation
        ended = SessionClosed(state.session, "taken_over", number)
        yield [SessionTakenOver(state.session, number), ended]


@forges(SessionClosed, "of a client that is away")
def _closes_again(moment: Moment) -> Iterator[list[Told]]:
    for state in moment.away:
        yield [SessionClosed(state.session, "error", state.generation)]


@forges(SessionTakenOver, "of a connected client")
def _taken(moment: Moment) -> Iterator[list[Told]]:
    for state in moment.connected:
        yield [SessionTakenOver(state.session, state.generation)]


@forges(SessionTakenOver, "of a client that is away")
def _taken_from_nobody(moment: Moment) -> Iterator[list[Told]]:
    for state in moment.away:
        yield [SessionTakenOver(state.session, state.generation)]


@forges(SessionExpired, "before its time")
def _ends_early(moment: Moment) -> Iterator[list[Told]]:
    for state in moment.away:
        yield [SessionExpired(state.session, "expired")]


@forges(SessionExpired, "of a connected client")
def _ends_connected(moment: Moment) -> Iterator[list[Told]]:
    for state in moment.connected:
        yield [SessionExpired(state.session, "expired")]


@forges(SessionExpired, "`removed`, by nobody")
def _removed_by_nobody(moment: Moment) -> Iterator[list[Told]]:
    for state in moment.away:
        yield [SessionExpired(state.session, "removed")]


@forges(SessionExpired, "of an unknown session")
def _ends_nothing(_moment: Moment) -> Iterator[list[Told]]:
    yield [SessionExpired("mallory", "expired")]


# ----------------------------------------------------------------------------------- subscriptions


def _subscribes(*filters: tuple[str, int], away: bool = False) -> Any:
    def makes(moment: Moment) -> Iterator[list[Told]]:
        for state in moment.away if away else moment.connected:
            if not any(name in state.subscriptions for name, _ in filters):
                yield [Subscribed(state.session, [*filters])]

    return makes


forges(Subscribed, "to a topic with messages", "b")(_subscribes(("t", 1)))
forges(Subscribed, "to a topic without messages", "b")(_subscribes(("nobody", 1)))
forges(Subscribed, "of a client that is away")(_subscribes(("nobody", 1), away=True))
forges(Subscribed, "to an unknown shared subscription", "b")(_subscribes(("$share/other/x", 1)))


@forges(Subscribed, "to a topic with a retained message")
def _subscribes_to_retained(moment: Moment) -> Iterator[list[Told]]:
    for state in moment.connected:
        for one in moment.retained.values():
            if one.qos and one.topic not in state.subscriptions:
                yield [Subscribed(state.session, [(one.topic, 1)])]


@forges(Subscribed, "again, at another QoS", "b")
def _subscribes_higher(moment: Moment) -> Iterator[list[Told]]:
    for state, held in moment.held():
        yield [Subscribed(state.session, [(held.filter, 0)])]


def _denies(code: int, *, away: bool = False) -> Any:
    def makes(moment: Moment) -> Iterator[list[Told]]:
        for state in moment.away if away else moment.connected:
            yield [SubscriptionDenied(state.session, ["secret/#"], [code])]

    return makes


forges(SubscriptionDenied, "not authorized", "k")(_denies(0x87))
forges(SubscriptionDenied, "for a code that is no error")(_denies(1))
forges(SubscriptionDenied, "of a client that is away")(_denies(0x87, away=True))


@forges(Unsubscribed, "from a subscription", "b")
def _unsubscribes(moment: Moment) -> Iterator[list[Told]]:
    for state, held in moment.held():
        yield [Unsubscribed(state.session, [held.filter])]


@forges(Unsubscribed, "from what was not subscribed to")
def _unsubscribes_from_nothing(moment: Moment) -> Iterator[list[Told]]:
    for state in moment.connected:
        yield [Unsubscribed(state.session, ["nobody"])]


@forges(Unsubscribed, "of a client that is away")
def _unsubscribes_away(moment: Moment) -> Iterator[list[Told]]:
    for state, held in moment.held(connected=False):
        yield [Unsubscribed(state.session, [held.filter])]


# ------------------------------------------------------------------------------------------- wills


def _will(session: str) -> Told:
    return WillArmed(session, "nobody", 1, False, 4, 0), [b"gone"]


@forges(WillArmed, "of a connected client")
def _arms(moment: Moment) -> Iterator[list[Told]]:
    for state in moment.connected:
        yield [_will(state.session)]


@forges(WillArmed, "of a client that is away")
def _arms_away(moment: Moment) -> Iterator[list[Told]]:
    for state in moment.away:
        yield [_will(state.session)]


@forges(WillFired, "of a connected client")
def _fires(moment: Moment) -> Iterator[list[Told]]:
    for state in moment.connected:
        if state.will is not None:
            yield [WillFired(state.session)]


@forges(WillFired, "with its message, and its connection goes on")
def _fires_with_message(moment: Moment) -> Iterator[list[Told]]:
    for state in moment.connected:
        if state.will is not None:
            topic, qos, retain, *_ = state.will
            event = MessagePublished(
                state.session, qos, retain, [topic], [], [], 4, 0, 1, will=True
            )
            yield [WillFired(state.session), (event, [b"gone"])]


@forges(WillFired, "before its delay has passed")
def _fires_early(moment: Moment) -> Iterator[list[Told]]:
    for state in moment.away:
        if state.will is not None:
            yield [WillFired(state.session)]


@forges(WillFired, "of a client without a will")
def _fires_nothing(moment: Moment) -> Iterator[list[Told]]:
    for state in moment.states:
        if state.will is None:
            yield [WillFired(state.session)]


@forges(WillCancelled, "of a client with a will")
def _discards(moment: Moment) -> Iterator[list[Told]]:
    for state in moment.states:
        if state.will is not None:
            yield [WillCancelled(state.session)]


@forges(WillCancelled, "of a client without a will")
def _discards_nothing(moment: Moment) -> Iterator[list[Told]]:
    for state in moment.states:
        if state.will is None:
            yield [WillCancelled(state.session)]


# ----------------------------------------------------------------------------- shared subscriptions


@forges(Assigned, "of a message that was assigned before")
def _assigns_again(moment: Moment) -> Iterator[list[Told]]:
    for member, ref in moment.assigned:
        yield [Assigned(GROUP, member, [ref])]


@forges(Assigned, "of a message that was assigned before, and sent to the member")
def _assigns_and_sends(moment: Moment) -> Iterator[list[Told]]:
    for state in moment.connected:
        for _, ref in moment.assigned:
            if GROUP in state.subscriptions:
                sent = Delivered(state.session, GROUP, 1, [_UNUSED], [ref])
                yield [sent, Assigned(GROUP, state.session, [ref])]


@forges(Assigned, "of a message of another topic")
def _assigns_another(moment: Moment) -> Iterator[list[Told]]:
    for state in moment.connected:
        for one in [*moment.messages.values()][-1:]:
            if GROUP in state.subscriptions and one.topic != "g/t":
                yield [Assigned(GROUP, state.session, [one.ref])]


@forges(Returned, "by a connected member")
def _returns(moment: Moment) -> Iterator[list[Told]]:
    for state in moment.connected:
        for pid, one in state.inflight.items():
            if one.subscription.filter == GROUP:
                yield [Returned(state.session, GROUP, [pid], [one.ref])]


@forges(Returned, "of a message that no member has")
def _returns_nothing(moment: Moment) -> Iterator[list[Told]]:
    for state in moment.connected:
        for _, ref in moment.assigned:
            if not state.inflight:
                yield [Returned(state.session, GROUP, [_UNUSED], [ref])]


# ---------------------------------------------------------------------------------------- the node

_LIMITS_NOW: Final = LimitsApplied(LIMITS, permissions="0123456789abcdef", users="ab")


@forges(BrokerStarted, "without its limits")
def _starts_without_limits(_moment: Moment) -> Iterator[list[Told]]:
    yield [BrokerStarted("0.1", epoch=3, leader="n1", cause="dead")]


@forges(BrokerStarted, "with its limits", "g")
def _starts(_moment: Moment) -> Iterator[list[Told]]:
    yield [BrokerStarted("0.1", epoch=3, leader="n1", cause="dead"), replace(_LIMITS_NOW)]


@forges(BrokerStarted, "with its limits and the ends of all connections", "g")
def _restarts(moment: Moment) -> Iterator[list[Told]]:
    start = BrokerStarted("0.1", epoch=3, leader="n1", cause="dead")
    ends = [
        SessionClosed(one.session, "broker_restarted", one.generation) for one in moment.connected
    ]
    yield [start, replace(_LIMITS_NOW), *ends]


@forges(BrokerStopped, "while it runs", "f")
def _stops(_moment: Moment) -> Iterator[list[Told]]:
    yield [BrokerStopped()]


def _limits(**given: Any) -> Any:
    def makes(_moment: Moment) -> Iterator[list[Told]]:
        yield [replace(_LIMITS_NOW, limits={**LIMITS, **given})]

    return makes


forges(LimitsApplied, "with the current limits", "c")(_limits())
forges(LimitsApplied, "with other limits", "d")(
    _limits(max_queued_messages=9, max_queued_bytes=9000, session_expiry=900.0)
)


@forges(LeaderProved, "of the leader", "i")
def _proves(_moment: Moment) -> Iterator[list[Told]]:
    yield [LeaderProved(1)]


@forges(CheckpointBegun, "with the next number, and never completed", "f")
def _begins(moment: Moment) -> Iterator[list[Told]]:
    if not moment.is_in_checkpoint:
        yield [CheckpointBegun(len(moment.checkpoints) + 1, epoch=1)]


@forges(CheckpointBegun, "with a number that there was")
def _begins_again(moment: Moment) -> Iterator[list[Told]]:
    for number in range(len(moment.checkpoints)):
        yield [CheckpointBegun(number + 1, epoch=1)]


@forges(CheckpointCompleted, "of a checkpoint that was completed")
def _completes_again(moment: Moment) -> Iterator[list[Told]]:
    if moment.completed:
        yield [CheckpointCompleted(1, moment.checkpoints[0][0], len(moment.states) + 1, 2)]


@forges(CheckpointCompleted, "of a checkpoint that was not begun")
def _completes_nothing(moment: Moment) -> Iterator[list[Told]]:
    yield [CheckpointCompleted(9, position(moment.record.sequence, 0), 0, 0)]


@forges(SessionSnapshot, "of an unchanged session, without a checkpoint")
def _repeats(moment: Moment) -> Iterator[list[Told]]:
    for state in moment.states:
        if not moment.is_in_checkpoint:
            yield [SessionSnapshot(state.session, *encode_session(state))]


@forges(SessionSnapshot, "of an unknown session")
def _repeats_nothing(moment: Moment) -> Iterator[list[Told]]:
    for state in moment.states:
        said = SessionSnapshot("mallory", *encode_session(state))
        yield [said]


@forges(RetainedSnapshot, "of a message as it is retained, without a checkpoint")
def _repeats_retained(moment: Moment) -> Iterator[list[Told]]:
    for one in moment.retained.values():
        if not moment.is_in_checkpoint and one.qos and one.topic != "r":
            yield [(RetainedSnapshot([one.topic], [one.qos], [one.ref], 4, 0, 1), [one.payload])]


@forges(RetainedSnapshot, "of a message that is not retained")
def _repeats_no_retained(moment: Moment) -> Iterator[list[Told]]:
    for one in [*moment.messages.values()][-1:]:
        if one.topic not in moment.retained:
            yield [(RetainedSnapshot([one.topic], [1], [one.ref], 4, 0, 1), [one.payload])]


def _carries(ref: Position, topic: str, payload: bytes) -> list[Any]:
    return [(MessagesCarried([ref], [topic], [], 4, 0, 1), [payload])]


@forges(MessagesCarried, "of an unchanged message, without a cut", "c")
def _carries_one(moment: Moment) -> Iterator[list[Told]]:
    for one in [*moment.messages.values()][-1:]:
        if one.topic not in {"w/2", "r"}:
            yield _carries(one.ref, one.topic, one.payload)


@forges(MessagesCarried, "of a message with different content")
def _carries_another(moment: Moment) -> Iterator[list[Told]]:
    for one in [*moment.messages.values()][-1:]:
        yield _carries(one.ref, one.topic, b"made")


@forges(MessagesCarried, "of an unknown message")
def _carries_nothing(moment: Moment) -> Iterator[list[Told]]:
    if moment.number > 0:
        yield _carries(position(moment.record.sequence, 7), "nobody", b"made")


@forges(LogCut, "at an existing checkpoint", "f")
def _cuts(moment: Moment) -> Iterator[list[Told]]:
    for begun, record in moment.checkpoints:
        if not moment.is_in_checkpoint:
            yield [LogCut(begun >> 20, record.previous.hex(), record.time_ms, "keep")]


@forges(LogCut, "where no checkpoint begins")
def _cuts_anywhere(moment: Moment) -> Iterator[list[Told]]:
    one = moment.record
    if moment.number > 0 and not moment.is_in_checkpoint:
        yield [LogCut(one.sequence, one.previous.hex(), one.time_ms, "keep")]


@forges(LogArchived, "up to an existing record", "e")
def _archives(moment: Moment) -> Iterator[list[Told]]:
    one = moment.record
    yield [LogArchived(one.sequence, one.link.hex(), "ann", "/archive")]


@forges(LogArchived, "with another link")
def _archives_another(moment: Moment) -> Iterator[list[Told]]:
    yield [LogArchived(moment.record.sequence, "ab" * 32, "ann", "/archive")]


@forges(Bridged, "up to a message", "e")
def _bridged(moment: Moment) -> Iterator[list[Told]]:
    yield [Bridged(position(moment.record.sequence, 0))]


@forges(Bridged, "up to a position that is not there yet")
def _bridged_later(moment: Moment) -> Iterator[list[Told]]:
    yield [Bridged(position(moment.record.sequence + 9, 0))]


@forges(Followed, "up to a later position", "j")
def _followed(_moment: Moment) -> Iterator[list[Told]]:
    yield [Followed("other", position(9, 0), "cd" * 32)]


@forges(RetainedCleared, "by nobody")
def _clears(moment: Moment) -> Iterator[list[Told]]:
    for topic in moment.retained:
        yield [RetainedCleared([topic])]


@forges(RetainedCleared, "of nothing, by an operator")
def _clears_nothing(_moment: Moment) -> Iterator[list[Told]]:
    yield [OperatorActed("clear_retained", "ann", "nobody"), RetainedCleared(["nobody"])]


@forges(RetainedCleared, "by an operator", "e")
def _clears_by_operator(moment: Moment) -> Iterator[list[Told]]:
    for topic in moment.retained:
        yield [OperatorActed("clear_retained", "ann", topic), RetainedCleared([topic])]


@forges(RetainedExpired, "before its time")
def _retained_expires(moment: Moment) -> Iterator[list[Told]]:
    for topic in moment.retained:
        yield [RetainedExpired([topic])]


@forges(RetainedExpired, "of a topic without a retained message")
def _retained_expires_nothing(_moment: Moment) -> Iterator[list[Told]]:
    yield [RetainedExpired(["nobody"])]


def _acts(action: str) -> Any:
    def makes(moment: Moment) -> Iterator[list[Told]]:
        for state in moment.states:
            yield [OperatorActed(action, "ann", state.session, state.session)]

    return makes


forges(OperatorActed, "`kick`, and the client stays")(_acts("kick"))
forges(OperatorActed, "`remove_session`, and the session stays")(_acts("remove_session"))
forges(OperatorActed, "`restart`", "e")(_acts("restart"))
forges(OperatorActed, "an unknown action")(_acts("banana"))
forges(OperatorActed, "`kick`, with the end of the connection")(
    _closes("kicked", OperatorActed("kick", "ann", "", ""))
)


@forges(OperatorActed, "`clear_retained`, and nothing is cleared")
def _acts_on_retained(_moment: Moment) -> Iterator[list[Told]]:
    yield [OperatorActed("clear_retained", "ann", "r3")]


@forges(WebAccessed, "a login", "e")
def _logs_in(_moment: Moment) -> Iterator[list[Told]]:
    yield [WebAccessed("login", "10.0.0.9", "eve", "operate")]


# -------------------------------------------------------------------------------------------- logs


class Forgery(NamedTuple):
    """A kind of forged event, and a log with one."""

    kind: Kind
    forged: Forged


def turns_of(log: list[bytes]) -> Iterator[list[Record]]:
    """Yield the turns of a log."""
    assembler = TurnAssembler()
    for sequence, data in enumerate(log, 1):
        _, turn = assembler.take(decode_record(sequence, data))
        if turn:
            yield turn


def forgeries(places: int = PLACES) -> Iterator[Forgery]:
    """Yield forged events of every kind, at some of the places where they are plausible."""
    found: dict[tuple[str, str], list[tuple[int, list[Any]]]] = {}
    moment = Moment()
    for number, turn in enumerate(turns_of(sound_log().records)):
        moment.follow(number, turn)
        for kind in KINDS:
            some = found.setdefault(kind[:2], [])
            some += [(number, events) for events in kind.makes(moment)]
    for kind in KINDS:
        some = found[kind[:2]]
        chance = random.Random(f"{kind.event} {kind.what}")
        others = chance.sample(range(len(some) - 1), min(places, len(some)) - 1)
        # Least depends on the last one.
        for number, place in enumerate([-1, -1, *others]):
            yield Forgery(kind, Forged(*some[place], same_turn=bool(number % 2)))
