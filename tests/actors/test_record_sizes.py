"""No event without payload exceeds the smallest record that the log must accept.

All bounds of an event at once: names of 65 535 characters that JSON writes as six bytes each,
columns as long as they get, integers as large as they get and in no order.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, cast, get_args

import orjson
import pytest

from actors.access.rules import Permissions
from actors.limits.broker_options import BrokerOptions
from actors.maintenance.checkpoints import repeat_messages, repeat_retained, repeat_session
from actors.maintenance.recovery import applied_limits
from actors.session.decisions import acknowledgements, queueing, subscribing
from actors.session.decisions.queueing import DeliveryLimits
from actors.session.publisher import split_for_records
from eventstore.format import events, node_events
from eventstore.format.destination_events import (
    DestinationClosed,
    DestinationOpened,
    Forwarded,
    ForwardLost,
    ForwardRefused,
    OriginTaken,
)
from eventstore.format.erasure_events import (
    Erased,
    ErasureRequested,
    TopicsKeyed,
)
from eventstore.format.event_parsing import Event, LogEvent, entries
from eventstore.format.positions import INDEX_BITS, MAX_INDEX, to_runs
from eventstore.format.record_size import MIN_RECORD, NAME_BYTES, NAMES, RECORD_OVERHEAD
from eventstore.format.records import GENESIS
from eventstore.format.turn_events import (
    TurnAcked,
    TurnDelivered,
    TurnEvent,
    TurnPublished,
    TurnReleased,
)
from eventstore.log.journal import Journal
from eventstore.log.message_store import Message
from projections.state.node_state import NodeState
from projections.state.session import InFlight, SessionState
from projections.state.snapshot import decode_session, encode_session
from projections.state.topic_keys import TopicKeys
from protocol.mqtt.packets import Publishes

NAME = "\x01" * NAME_BYTES
IDS = random.Random(1).sample(range(1, 65_536), 65_535)
MANY = 200_000


def many_keys() -> TopicKeys:
    """Keys of several periods, of topics with long and with short names."""
    keys = TopicKeys()
    for at, topic in enumerate([NAME, *map(str, range(3000)), NAME[1:]]):
        for period in range(3):
            number = NUMBER - 9 * at - 2 * period
            event = TopicsKeyed([topic], [number], [""], begins_ms=number, ends_ms=number - 1)
            keys.fold(event, at)
    keys.pending = [NUMBER - 2 * at * at for at in range(500)]
    return keys


def refs(count: int) -> list[int]:
    """Positions far into a log, in no order."""
    chance = random.Random(2)
    return [chance.randrange(1 << 38 << INDEX_BITS) for _ in range(count)]


def subscribed(**fields: Any) -> SessionState:
    state = SessionState(NAME, **fields)
    held = state.subscription(NAME)
    held.active, held.qos = True, 1
    return state


def delivered() -> Iterable[Event]:
    """Retained messages in great number, half of them sent, some queued, the others dropped."""
    payloads = [b""] * MANY
    window = DeliveryLimits(65_535, MANY // 2, 1 << 30, 1 << 30)
    return queueing.deliver(
        subscribed(), NAME, 1, refs(MANY), payloads, 0, window, retain=True, ready=True
    ).events


def released() -> Iterable[Event]:
    state = subscribed(inbound=dict(zip(IDS, refs(65_535), strict=True)))
    return acknowledgements.released(state, IDS)


def waiting() -> SessionState:
    state = subscribed(user=NAME)
    node = NodeState()
    node.sessions[NAME] = state
    for at, event in enumerate(
        queueing.queued(NAME, NAME, 1, refs(MANY), [b"x"] * MANY, retain=False)
    ):
        node.apply(event, at << INDEX_BITS, 0)
    return state


def unsubscribed() -> Iterable[Event]:
    return subscribing.unsubscribe(waiting(), [NAME, *map(str, range(100_000))])


def snapshots() -> Iterable[Event]:
    state = waiting()
    held = state.subscriptions[NAME]
    state.inflight = {
        pid: InFlight(ref, 1, held, at)
        for at, (pid, ref) in enumerate(zip(IDS, refs(65_535), strict=True))
    }
    state.inbound = dict(zip(IDS, refs(65_535), strict=True))
    will = events.WillArmed(NAME, NAME, 1, True, 0, 0)
    node = NodeState()
    node.sessions[NAME] = state
    node.apply(will, MAX_INDEX, 0)
    return [said.event for said in repeat_session(node, NAME)]


def published() -> Iterable[Event]:
    """What comes in one read: many messages, as small as can be."""
    packet = Publishes(1)
    packet.topics += [b"a", b"b"] * 50_000
    packet.payloads.extend([b"", b"x"] * 50_000)
    packet.packet_ids += [*IDS, *IDS][:100_000]
    for part in split_for_records(packet, MIN_RECORD // 4):
        sizes, count = list(map(len, part.payloads)), len(part)
        which = [number % 2 for number in range(count)]
        pids = to_runs(part.packet_ids)
        yield events.MessagePublished(NAME, 1, False, ["a", "b"], which, pids, sizes, 0, count)


def repeated() -> Iterable[Event]:
    node = NodeState()
    for at, topic in enumerate([NAME, *(f"\x01{number}" for number in range(3000))], 1):
        event = events.MessagePublished("p", 1, True, [topic], [], [1], 1, 0, 1)
        node.apply(event, at << INDEX_BITS, 0, [b"x"])
    for said in repeat_retained(node, node.retained.topics()):
        yield said.event
    found = zip(
        refs(3000), [Message(NAME.encode(), b""), *[Message(b"a", b"")] * 2999], strict=True
    )
    places = list(found)
    for said in repeat_messages(places, {ref for ref, _ in places}):
        yield said.event


def subscribes() -> Iterable[Event]:
    asked = [(NAME, 1), *((f"\x01/{number}", 1) for number in range(100_000))]
    return subscribing.subscribe(SessionState(NAME), asked, max_qos=2).events


def denied() -> Iterable[Event]:
    asked = [(NAME, 1), *((f"\x01/{number}", 1) for number in range(100_000))]
    codes = [0x87, 0x97]
    return subscribing.subscribe(
        SessionState(NAME), asked, max_qos=2, refuses=lambda text: codes[len(text) % 2]
    ).events


def limits() -> Event:
    return replace(
        applied_limits(BrokerOptions(node="n"), Permissions()),
        permissions="0" * 64,
        users="0" * 64,
        elsewhere=True,
    )


def turn() -> Iterable[LogEvent]:
    """What several sessions share, as large as ``actors.fast_path`` lets it become."""
    name, topic = "\x01" * 256, "\x01" * 256
    many, long = 128, range(1 << 50, (1 << 50) + 256 * 7, 7)
    each = list(range(many))
    yield TurnPublished([name] * many, each, 2, [topic] * many, each, each, each, NUMBER, many)
    yield TurnDelivered(
        [name] * 256, [topic] * 256, [*range(256)], 2, [65_535] * 256, to_runs(long)
    )
    yield TurnAcked("Completed", [name] * many, each, [65_535] * many)
    yield TurnReleased([name] * many, each, [65_535] * many, to_runs(long[:many]))


NUMBER = 1 << 62
VECTOR = {"n" * 60 + f"-p{number}": NUMBER for number in range(32)}
"""Positions in as many logs as a node may have."""
EVENTS: dict[str, Callable[[], Iterable[LogEvent]]] = {
    "delivered, queued and dropped": delivered,
    "released": released,
    "unsubscribed": unsubscribed,
    "subscribed": subscribes,
    "denied": denied,
    "published": published,
    "session repeated": snapshots,
    "messages repeated": repeated,
    "acknowledged": lambda: [
        kind(NAME, to_runs(IDS)) for kind in (events.Acked, events.Received, events.Completed)
    ],
    "turn": turn,
    "sent again": lambda: [events.Redelivered(NAME, to_runs(IDS), "ack_wait")],
    "retained cleared": lambda: [
        node_events.RetainedCleared(part) for part in subscribing.by_text([NAME] * 500, str)
    ],
    "will": lambda: [
        events.WillArmed(NAME, NAME, 2, True, 65_535, NUMBER),
        events.WillFired(NAME),
        events.WillCancelled(NAME),
        events.MessagePublished(NAME, 2, True, [NAME], [], [], 70_000, NUMBER, 1, True),
    ],
    "connected": lambda: [
        events.SessionOpened(NAME, True, True, 4, 65_535, NUMBER, "x" * 100, NAME, NUMBER),
        events.SessionTakenOver(NAME, NUMBER),
        events.SessionClosed(NAME, "broker_stopped", NUMBER),
        events.SessionExpired(NAME, "removed"),
    ],
    "level 5": lambda: [
        events.Refused(NAME, to_runs(IDS), [0x80, 0x99] * 32_767 + [0x80]),
        events.Acked(NAME, to_runs(IDS), reasons=[0x80, 0x99] * 32_767 + [0x80]),
        events.Queued(NAME, NAME, 1, refs(4096), 1, expires=refs(4096), behind=NUMBER),
        events.Expired(NAME, NAME, refs(4096), NUMBER),
        events.Assigned(NAME, NAME, refs(4096), NUMBER),
        events.Returned(NAME, NAME, IDS[:4096], refs(4096)),
        events.InboundReplaced(NAME, IDS[:4096], refs(4096)),
        events.WillArmed(NAME, NAME, 2, True, 131_070, NUMBER, NUMBER, blocks=[65_535]),
        *(events.RetainedExpired(part) for part in subscribing.by_text([NAME] * 500, str)),
    ],
    "replay": lambda: [
        events.ReplayOpened(NAME, NAME, VECTOR, start_ms=NUMBER, until=VECTOR, until_ms=NUMBER),
        events.ReplayReached(
            NAME,
            NAME,
            VECTOR,
            sent=NUMBER,
            left_out=dict.fromkeys(map(str, range(8)), NUMBER),
            gap={name: [NUMBER, NUMBER] for name in VECTOR},
            state="too_many_topics",
        ),
    ],
    "node": lambda: [
        node_events.OperatorActed("remove_session", "\x01" * 256, NAME, NAME),
        node_events.OperatorActed("retry_messages", "\x01" * 256, "n" * 64, refs=refs(10_000)),
        node_events.LogArchived(NUMBER, "0" * 64, "\x01" * 256, "\x01" * 4096),
        node_events.LogCut(NUMBER, "0" * 64, NUMBER, "keep_bytes"),
        node_events.LogSalvaged(
            *(NUMBER, NUMBER, "0" * 64, NUMBER, NUMBER, NUMBER),
            *("\x01" * 4096, "\x01" * 256, "1.2.3", ["\x01" * 256] * 20, NUMBER),
            *(NUMBER, NUMBER),
        ),
        node_events.LogEndUnproven("no_watermark", NUMBER, NUMBER, NUMBER, "\x01" * 4096),
        node_events.CheckpointBegun(NUMBER, epoch=NUMBER),
        node_events.CheckpointCompleted(NUMBER, NUMBER, NUMBER, NUMBER),
        node_events.ClockJumped(NUMBER, "running", NUMBER),
        node_events.Bridged(NUMBER),
        node_events.Followed("n" * 64, NUMBER, "0" * 64, expired=refs(512), erased=refs(512)),
        DestinationOpened(
            *("n" * 64, "http", NUMBER, ["\x01" * 1024] * 64, "0" * 16, "repeated", "\x01" * 256),
            run=NUMBER,
            paused=True,
            refused=NUMBER,
            losses=NUMBER,
            refs=refs(10_000),
        ),
        Forwarded(
            *("n" * 64, NUMBER),
            received=NUMBER,
            number=NUMBER,
            count=NUMBER,
            refs=refs(10_000),
        ),
        ForwardRefused("n" * 64, refs(1024), "\x01" * 256, code=NUMBER),
        OriginTaken(NAME, "n" * 64, NUMBER, NUMBER, NUMBER, refs(10_000), refs(10_000)),
        ForwardLost("n" * 64, NUMBER, NUMBER, "max_behind_bytes", messages=NUMBER),
        DestinationClosed("n" * 64, "removed"),
        *(
            made
            for part in subscribing.by_text([NAME, *map(str, range(9000))], str)
            for keys in [[NUMBER - 2 * at for at in range(len(part))]]
            for made in (
                TopicsKeyed(part, keys, ["0" * 32] * len(part)),
                ErasureRequested(
                    *(NUMBER, "\x01" * 256, "restored", part, keys), filter="\x01" * 65_535
                ),
            )
        ),
        *many_keys().snapshot(),
        Erased(NUMBER, NUMBER),
        node_events.BrokerStarted("1.2.3", epoch=NUMBER, leader="n" * 32, cause="stopped"),
        node_events.LeaderProved(NUMBER),
        limits(),
        node_events.BrokerStopped(),
        node_events.WebAccessed(
            "token_removed",
            "\x01" * 256,
            "\x01" * 256,
            "operate",
            "wrong_cookie",
            NUMBER,
            NUMBER,
            "2026-12-31T23:59:59Z",
        ),
    ],
}


class NoStore:
    def __init__(self) -> None:
        self.largest = 0

    def send(self, record: Any) -> None:
        self.largest = max(self.largest, len(record.data))

    def steady_ms(self) -> int:
        return 1 << 41

    def monotonic(self) -> float:
        return 0.0


def journal(largest: int) -> tuple[Journal, NoStore]:
    store = NoStore()
    made = Journal(
        store, store, node="n", sequence=0, link=GENESIS, max_record=largest // 2, max_inflight=999
    )
    made.max_event = largest - RECORD_OVERHEAD
    return made, store


_kinds: dict[str, set[str]] = {}
"""The types of the events that were built: they are large, and take long to build."""


def build(name: str) -> Iterator[Any]:
    kinds = _kinds.setdefault(name, set())
    for event in EVENTS[name]():
        kinds.add(event.e)
        yield event


@pytest.mark.parametrize("name", EVENTS)
@pytest.mark.slow
def test_every_event_fits_into_the_smallest_record(name: str) -> None:
    made, store = journal(MIN_RECORD)
    for event in build(name):
        count = entries(event)
        assert count <= MAX_INDEX
        size = getattr(event, "size", 0) if isinstance(event, events.WillArmed) else 0
        if isinstance(event, (events.MessagePublished, TurnPublished)):
            size = event.sizes if isinstance(event.sizes, int) else sum(event.sizes)
        made.append(event, count, [bytes(size)] if size else (), size)
        made.end_turn()
    made.flush()
    assert 0 < store.largest <= MIN_RECORD - RECORD_OVERHEAD // 2


@pytest.mark.slow
def test_no_event_is_missing_here() -> None:
    for name in EVENTS.keys() - _kinds.keys():
        list(build(name))
    built = set().union(*_kinds.values())
    assert built == {kind.__name__ for union in (Event, TurnEvent) for kind in get_args(union)}


@pytest.mark.parametrize("largest", [MIN_RECORD, 2 * MIN_RECORD, 32 * MIN_RECORD])
def test_names_leave_room_for_the_payload(largest: int) -> None:
    """A message of which the names are as long as they get."""
    made, _ = journal(largest)
    size = largest - RECORD_OVERHEAD - NAMES
    assert made.has_room(size, NAME, NAME)
    assert not made.has_room(size + 10_000, NAME, NAME)
    made.append(
        events.MessagePublished(NAME, 1, True, [NAME], [], [1], size, 0, 1), 1, [bytes(size)], size
    )


def test_what_is_repeated_of_a_session_is_read_back() -> None:
    """Also where user and will do not fit into the same part."""
    state = waiting()
    node = NodeState()
    node.sessions[NAME] = state
    node.apply(events.WillArmed(NAME, NAME, 1, True, 0, 0), MAX_INDEX, 0)
    parts = [orjson.loads(orjson.dumps(part)) for part in encode_session(state)]
    again = decode_session(NAME, cast("Sequence[dict[str, Any]]", parts))
    assert (again.user, again.will, again.queued) == (state.user, state.will, state.queued)
