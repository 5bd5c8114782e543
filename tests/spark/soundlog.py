"""A sound log with every event type, each event in a record of its own.

``mutants`` damages it, and ``forgeries`` puts events into it. Its content is that of a log written
by a broker.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from harness.logs import LogBuilder

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
from eventstore.format.positions import Position, position
from eventstore.format.records import decode_record, link_of, previous_of
from projections.state.single_session import SessionFold
from projections.state.snapshot import encode_session

LIMITS = {
    "max_queued_messages": 3,
    "max_queued_bytes": 1000,
    "max_ack_pending": 100,
    "max_outbound_bytes": 1000,
    "session_expiry": 600.0,
    "slow_reader_time": 60.0,
    "max_topic_levels": 9,
    "check_payload_format": True,
}
EXPIRES = b"\2\0\0\0\5"
"""Properties of a message that expires after five seconds."""
GROUP = "$share/g/g/t"
REPLAY = "$replay/all/t"


class Forged(NamedTuple):
    """Events that never happened."""

    turn: int
    """Number of the turn that they follow."""
    events: list[Event | tuple[Event, list[bytes]]]
    same_turn: bool
    """Whether they belong to that turn; otherwise they are a turn of their own."""


class SoundLogWriter:
    """Writes a log, one event in a record."""

    def __init__(self, forged: Forged | None = None) -> None:
        self._forged = forged
        self._false: set[int] = set()
        """Records with events that never happened: what follows in the log does not know them."""
        self._turns = 0
        self.log = LogBuilder("sound", begin_ms=1_700_000_000_000, step_ms=1)
        self.time_ms = self.log.time_ms

    def turn(self, *events: Event | tuple[Event, list[bytes]], after: int = 100) -> list[Position]:
        """Append a turn some milliseconds later; return where its events stand."""
        self.time_ms += after
        forged, self._turns = self._forged, self._turns + 1
        if forged is None or forged.turn != self._turns - 1:
            return self._write(events)
        if forged.same_turn:
            places = self._write([*events, *forged.events])
        else:
            places = [*self._write(events), *self._write(forged.events)]
        self._false.update(place >> 20 for place in places[len(events) :])
        return places[: len(events)]

    def _write(self, events: Sequence[Event | tuple[Event, list[bytes]]]) -> list[Position]:
        places = []
        for part, one in enumerate(events):
            event, payloads = one if isinstance(one, tuple) else (one, [])
            self.log.record(
                event,
                payloads=payloads,
                time_ms=self.time_ms,
                part=part,
                last=part == len(events) - 1,
            )
            places.append(position(self.log.last, 0))
        return places

    @property
    def next(self) -> Position:
        """Where the next event will stand."""
        return position(self.log.last + 1, 0)

    def publishes(
        self, topic: str, count: int = 1, *, qos: int = 1, pid: int = 1, retain: bool = False,
        session: str = "p", expires: bool = False,
    ) -> tuple[MessagePublished, list[bytes]]:  # fmt: skip
        """Messages of four bytes."""
        pids: list[Any] = list(range(pid, pid + count)) if qos else []
        event = MessagePublished(session, qos, retain, [topic], [], pids, 4, 0, count)
        if expires:
            event.blocks, event.at = [len(EXPIRES)], len(EXPIRES)
        blocks = [EXPIRES] if expires else []
        return event, [*blocks, *(b"%04d" % (self.log.last + number) for number in range(count))]

    def snapshots(self) -> list[SessionSnapshot]:
        """The state of all sessions as of now."""
        folds: dict[str, SessionFold] = {}
        for sequence, data in enumerate(self.log.records, 1):
            if sequence in self._false:
                continue
            record = decode_record(sequence, data)
            for index, event in record.events():
                name = getattr(event, "session", None)
                if name is not None and not isinstance(event, (OperatorActed, RetainedSnapshot)):
                    fold = folds.setdefault(name, SessionFold(name))
                    fold.take(event, position(sequence, index), record.time_ms)
        return [
            SessionSnapshot(name, *encode_session(fold.state))
            for name, fold in folds.items()
            if fold.state is not None
        ]


def opened(session: str, generation: int = 1, **given: Any) -> SessionOpened:
    """A CONNECT at level 4."""
    return SessionOpened(
        session, generation > 1, False, 4, 60, generation, "10.0.0.1:5", "u", **given
    )


def opened5(session: str, generation: int = 1, **given: Any) -> SessionOpened:
    """A CONNECT at level 5."""
    return SessionOpened(
        *(session, generation > 1, False, 5, 60, generation, "10.0.0.1:5", "u", 300),
        **{"receive_maximum": 10, "packet_maximum": 1000, **given},
    )


def sound_log(forged: Forged | None = None) -> LogBuilder:
    """Return the log, perhaps with events that never happened."""
    tale = SoundLogWriter(forged)
    turn = tale.turn
    turn(
        BrokerStarted("0.1", epoch=1, leader="n1", cause="first"),
        LimitsApplied(LIMITS, permissions="0123456789abcdef", users="ab"),
    )
    turn(opened("p"))
    turn(opened5("s", clean_start=True, properties={"user": [["a", "b"]]}))
    turn(Subscribed("s", [("t", 1), ("q", 2), ("w/1", 1)], options=[0, 8, 0], identifier=7))
    turn(opened("w"), (WillArmed("w", "w/1", 1, True, 4, 0), [b"gone"]))
    turn(SubscriptionDenied("s", ["secret/#"], [0x87]))
    first = _deliveries(tale)
    will = _wills(tale)
    waited = _queues(tale)
    _retained(tale)
    _replays(tale, [first, *waited])
    _shared(tale)
    _ends(tale)
    _checkpoint(tale, will)
    turn(SessionClosed("v", "disconnect", 1, code=0, expiry=0))
    _unanswered(tale)
    turn(LeaderProved(1))
    turn(Followed("other", position(3, 1), "ef" * 32))
    turn(WebAccessed("login", "10.0.0.9", "ann", "view", "", 2, 5, "never"))
    turn(BrokerStopped(), after=5)
    turn(
        BrokerStarted("0.1", epoch=2, leader="n2", cause="stopped"),
        LimitsApplied(LIMITS, permissions="0123456789abcdef", users="ab"),
        SessionClosed("p", "broker_restarted", 1),
        SessionClosed("s", "broker_restarted", 3, expiry=None),
        after=1000,
    )
    turn(SessionExpired("s", "expired"), after=301_000)
    turn(SessionExpired("z", "expired"), SessionExpired("p", "expired"), after=301_000)
    turn(Bridged(position(2, 0)), after=4 * 3_600_000)
    return tale.log


def _deliveries(tale: SoundLogWriter) -> Position:
    """Return where the first message on ``t`` was published."""
    turn = tale.turn
    one = tale.next
    turn(tale.publishes("t", 2), Delivered("s", "t", 1, [1, 2], [one, one + 1]))
    turn(Acked("s", [1, 2], reasons=[0, 0x10]))
    (ref,) = turn(tale.publishes("q", qos=2, pid=5))
    turn(Released("p", [5], [ref]), Delivered("s", "q", 2, [3], [ref]))
    turn(Received("s", [3], reasons=[0x10]))
    turn(Completed("s", [3]))
    (ref,) = turn(tale.publishes("q", qos=2, pid=6))
    turn(Released("p", [6], [ref]), Delivered("s", "q", 2, [4], [ref]))
    turn(Refused("s", [4], [0x83]))
    (ref,) = turn(tale.publishes("unread", qos=2, pid=8))
    _, ref = turn(InboundReplaced("p", [8], [ref]), tale.publishes("unread", qos=2, pid=8))
    turn(Released("p", [8], [ref]))
    return one


def _wills(tale: SoundLogWriter) -> Position:
    """Return where a will was published that is retained."""
    turn = tale.turn
    fired = tale.next
    will = MessagePublished("w", 1, True, ["w/1"], [], [], 4, 0, 1, will=True)
    ref = fired + (1 << 20)
    turn(
        WillFired("w"), (will, [b"gone"]), Delivered("s", "w/1", 1, [5], [ref]),
        SessionClosed("w", "keep_alive", 1),
    )  # fmt: skip
    turn(Acked("s", [5]))
    block = b"\1\1"
    armed = WillArmed("y", "w/2", 2, False, 4, len(block), 20, blocks=[len(block)])
    turn(opened5("y"), (armed, [block, b"bye!"]))
    turn(WillCancelled("y"), SessionClosed("y", "disconnect", 1, code=0, expiry=200))
    turn(opened5("y", 2), (WillArmed("y", "w/2", 1, False, 4, 0, 2), [b"late"]))
    turn(SessionClosed("y", "error", 2))
    last = MessagePublished("y", 1, False, ["w/2"], [], [], 4, 0, 1, will=True)
    turn(WillFired("y"), (last, [b"late"]), after=3000)
    return ref


def _queues(tale: SoundLogWriter) -> list[Position]:
    """Return where the messages on ``t`` were published that did not expire."""
    turn = tale.turn
    turn(SessionClosed("s", "closed", 1))
    ref, queued = tale.next, (tale.time_ms + 100) // 1000 + 5
    turn(
        tale.publishes("t", expires=True, pid=7),
        Queued("s", "t", 1, [ref], 4, expires=queued),
    )
    two = tale.next
    turn(tale.publishes("t", 2, pid=8), Queued("s", "t", 1, [two, two + 1], 8))
    three = tale.next
    turn(
        tale.publishes("t", pid=10),
        MessageDropped("s", "queue_messages", 1, [three], "t"),
    )
    turn(Expired("s", "t", [ref], 4), after=7000)
    turn(opened5("s", 2), Delivered("s", "t", 1, [6, 7], [two, two + 1], queued=8))
    turn(Acked("s", [6]))
    turn(
        SessionTakenOver("s", 2), SessionClosed("s", "taken_over", 2, code=0x8E), opened5("s", 3),
        Redelivered("s", [7], "resumed"),
    )  # fmt: skip
    turn(Acked("s", [7]))
    turn(MessageDropped("s", "slow_reader", 3))
    turn(Unsubscribed("s", ["q"]))
    return [two, three]


def _retained(tale: SoundLogWriter) -> None:
    turn = tale.turn
    (ref,) = turn(tale.publishes("r", retain=True, expires=True, pid=11))
    turn(Subscribed("s", [("r", 1)]), Delivered("s", "r", 1, [8], [ref], retain=True))
    turn(Acked("s", [8]))
    turn(RetainedExpired(["r"]), after=7000)
    turn(tale.publishes("r2", retain=True, pid=12))
    turn(OperatorActed("clear_retained", "ann", "r2"), RetainedCleared(["r2"]))


def _replays(tale: SoundLogWriter, places: Sequence[Position]) -> None:
    """A client replays all but the first of the messages on ``t``; the third one has expired."""
    turn = tale.turn
    first, third, last = places
    second, fourth = first + 1, third + 1
    turn(opened5("v"))
    turn(
        Subscribed("v", [(REPLAY, 1)]),
        ReplayOpened("v", REPLAY, {"": first}, until={"": last}),
    )
    turn(
        Delivered("v", REPLAY, 1, [1], [second]),
        ReplayReached("v", REPLAY, {"": third - 1}, sent=1, left_out={"expired": 1}),
    )
    turn(Acked("v", [1]))
    turn(
        Delivered("v", REPLAY, 1, [2, 3, 4], [third, fourth, last]),
        ReplayReached("v", REPLAY, {"": last}, sent=3, state="ended"),
    )
    turn(Acked("v", [2, 3, 4]))


def _shared(tale: SoundLogWriter) -> None:
    turn = tale.turn
    turn(
        SessionOpened(GROUP, False, False, 5, 0, 1, "", None, 0xFFFF_FFFF),
        Subscribed(GROUP, [("g/t", 2)]),
        SessionClosed(GROUP, "shared", 1),
    )
    turn(opened5("m"), Subscribed("m", [(GROUP, 1)]))
    turn(Subscribed("s", [(GROUP, 1)]))
    ref = tale.next
    turn(
        tale.publishes("g/t", pid=13), Delivered("m", GROUP, 1, [1], [ref]),
        Assigned(GROUP, "m", [ref], by_topic=True),
    )  # fmt: skip
    turn(
        Returned("m", GROUP, [1], [ref]), Queued(GROUP, "g/t", 1, [ref], 4, behind=0),
        SessionClosed("m", "error", 1),
    )  # fmt: skip
    turn(Delivered("s", GROUP, 1, [9], [ref]), Assigned(GROUP, "s", [ref], 4))
    turn(Acked("s", [9]))


def _ends(tale: SoundLogWriter) -> None:
    turn = tale.turn
    turn(opened("k"))
    turn(OperatorActed("kick", "ann", "k", "k"), SessionClosed("k", "kicked", 1))
    turn(OperatorActed("remove_session", "ann", "k", "k"), SessionExpired("k", "removed"))
    turn(SessionExpired("y", "expired"), after=310_000)
    turn(opened("y"))
    turn(SessionClosed("y", "disconnect", 1))
    turn(SessionExpired("y", "expired"), after=600_000)


def _checkpoint(tale: SoundLogWriter, will: Position) -> None:
    """While a message waits for ``m``, and another for its PUBREL to be retained."""
    turn = tale.turn
    ref = tale.next
    turn(Subscribed("s", [("m/#", 1)]))
    turn(opened("o"), Subscribed("o", [("t", 1)]))
    turn(SessionClosed("o", "closed", 1))
    ref = tale.next
    turn(
        tale.publishes("t", pid=14), Delivered("s", "t", 1, [10], [ref]),
        Queued("o", "t", 1, [ref], 4),
    )  # fmt: skip
    turn(Acked("s", [10]))
    waiting = tale.next
    _, payloads = tale.publishes("kept", qos=2, pid=15, retain=True)
    turn((MessagePublished("p", 2, True, ["kept"], [], [15], 4, 0, 1), payloads))
    (held,) = turn((MessagePublished("p", 1, True, ["r3"], [], [16], 4, 0, 1), [b"keep"]))
    turn(Bridged(position(1, 0)))
    turn(LogArchived(10, link_of(tale.log.records[9]).hex(), "ann", "/archive"))
    begun, snapshots = tale.next, tale.snapshots()
    number = tale.log.last + 1
    turn(CheckpointBegun(1, epoch=1))
    turn(LimitsApplied(LIMITS, permissions="0123456789abcdef", users="ab"))
    for one in snapshots:
        waits = (RetainedSnapshot(["kept"], [2], [waiting], 4, 0, 1, "p"), payloads)
        turn(one, *([waits] if one.session == "p" else []))
    repeated = RetainedSnapshot(["w/1", "r3"], [1, 1], [will, held], 4, 0, 2)
    turn((repeated, [b"gone", b"keep"]))
    turn(CheckpointCompleted(1, begun, len(snapshots), 2))
    area = decode_record(ref >> 20, tale.log.records[(ref >> 20) - 1]).payload
    carried = MessagesCarried(
        [ref, waiting], ["t", "kept"], [0, 1], 4, 0, 2, [waiting], as_retained=[waiting],
        publishers=["p"],
    )  # fmt: skip
    turn((carried, [bytes(area), *payloads]))
    data = tale.log.records[number - 1]
    record = decode_record(number, data)
    turn(LogCut(number, previous_of(data).hex(), record.time_ms, "keep"))
    turn(Released("p", [15], [waiting]))
    turn(opened("o", 2), Delivered("o", "t", 1, [1], [ref], queued=4))
    turn(Acked("o", [1]))
    turn(SessionClosed("o", "disconnect", 2), after=1000)
    turn(SessionExpired("o", "expired"), SessionExpired("w", "expired"), after=601_000)
    turn(SessionExpired("m", "expired"))


def _unanswered(tale: SoundLogWriter) -> None:
    """A client never answers, and another one never releases what it publishes."""
    turn = tale.turn
    turn(opened("z"), Subscribed("z", [("z/t", 2)]))
    one = tale.next
    turn(tale.publishes("z/t", pid=20), Delivered("z", "z/t", 1, [1], [one]))
    (ref,) = turn(tale.publishes("z/t", qos=2, pid=21))
    turn(Released("p", [21], [ref]), Delivered("z", "z/t", 2, [2], [ref]))
    (ref,) = turn(tale.publishes("z/t", qos=2, pid=22))
    turn(Released("p", [22], [ref]), Delivered("z", "z/t", 2, [3], [ref]))
    turn(Received("z", [3]))
    turn(tale.publishes("z/u", qos=2, pid=23))
    turn(SessionClosed("z", "error", 1))
