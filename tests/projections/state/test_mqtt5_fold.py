"""The effect of MQTT 5's events and fields on the state."""

import orjson
import pytest
from specification import CLIENT, given, opened, published, queued, snapshot, subscribed, subscriber

from actors.maintenance.checkpoints import (
    StateEvent,
    repeat_messages,
    repeat_retained,
    repeat_session,
)
from eventstore.format.event_json import field_values
from eventstore.format.event_parsing import Event
from eventstore.format.events import (
    Acked,
    Assigned,
    Delivered,
    Expired,
    MessagePublished,
    Queued,
    Refused,
    Released,
    RetainedExpired,
    Returned,
    SessionClosed,
    SessionOpened,
    Subscribed,
    Unsubscribed,
    WillArmed,
    WillCancelled,
)
from eventstore.format.node_events import MessagesCarried, RetainedSnapshot
from eventstore.format.positions import position
from eventstore.format.records import GENESIS, Record, decode_record, encode_record
from eventstore.log.message_store import Message, MessageStore
from projections.state.format import RETAINED, StoredEntry, retained_body, retained_of
from projections.state.node_state import NodeState
from projections.state.retained import RetainedMessage
from projections.state.session import SessionState, Will
from projections.state.snapshot import decode_session, encode_session
from projections.state.waiting_queue import QOS_MASK, RAP_FLAG

NOW_MS = 1_700_000_000_999
NOW = NOW_MS // 1000
BLOCK = b"\2\0\0\0\5\1\1"


def opened5(*, expiry: int, resumed: bool = False) -> SessionOpened:
    return SessionOpened(
        CLIENT, resumed, not expiry, 5, expiry=expiry, receive_maximum=9, packet_maximum=800
    )


def again(state: SessionState) -> SessionState:
    """The state out of its snapshot."""
    return decode_session(state.session, orjson.loads(orjson.dumps(encode_session(state))))


def test_the_client_declares_its_limits() -> None:
    state = given(opened5(expiry=60)).state
    assert (state.level, state.expiry, state.clean) == (5, 60, False)
    assert (state.receive_maximum, state.packet_maximum) == (9, 800)
    assert snapshot(again(state)) == snapshot(state)
    other = given(opened5(expiry=60), opened(resumed=True)).state
    assert (other.receive_maximum, other.packet_maximum) == (65_535, 0)


@pytest.mark.parametrize(("before", "after", "kept"), [(0, 60, True), (60, 0, False)])
def test_disconnect_changes_when_the_session_ends(before: int, after: int, *, kept: bool) -> None:
    node = NodeState()
    node.apply(opened5(expiry=before), 1, NOW_MS)
    node.apply(SessionClosed(CLIENT, "disconnect", expiry=after), 2, NOW_MS)
    state = node.sessions.get(CLIENT)
    assert (state is not None) == kept
    assert state is None or (state.expiry, state.clean) == (after, False)


def test_an_expiry_of_zero_is_not_an_absent_one() -> None:
    assert given(opened5(expiry=60), SessionClosed(CLIENT, "disconnect")).state.expiry == 60
    assert given(opened5(expiry=60), SessionClosed(CLIENT, "x", expiry=0)).state.expiry == 0


def test_a_subscription_has_its_options_and_identifier() -> None:
    spec = given(opened(), Subscribed(CLIENT, [("a", 1), ("b", 2)], options=[4, 0], identifier=7))
    assert (spec.subscription("a").options, spec.subscription("a").identifier) == (4, 7)
    assert (spec.subscription("b").options, spec.subscription("b").identifier) == (0, 7)
    assert snapshot(again(spec.state)) == snapshot(spec.state)
    spec.and_(subscribed(("a", 1)))
    assert (spec.subscription("a").options, spec.subscription("a").identifier) == (0, 0)


def test_options_are_kept_with_a_subscription_that_is_still_to_be_completed() -> None:
    spec = given(
        opened(),
        Subscribed(CLIENT, [("a", 1)], options=[8], identifier=7),
        queued("a", 1, [5], 1),
        Unsubscribed(CLIENT, ["a"]),
    )
    found = again(spec.state).subscriptions["a"]
    assert (found.active, found.options, found.identifier) == (False, 8, 7)


def test_a_snapshot_from_before_mqtt_5_is_read() -> None:
    state = decode_session(
        CLIENT,
        [
            {
                "generation": 1,
                "subscriptions": [["a", 1], ["b", 2, False]],
                "queues": [[1, 9, [[81, 3, 8], 4001]]],
                "will": ["w", 1, False, 7],
            }
        ],
    )
    assert [one.options for one in state.subscriptions.values()] == [0, 0]
    assert state.subscriptions["b"].queue is not None
    assert state.subscriptions["b"].queue.expiry() == 0
    assert state.will == Will("w", 1, False, 7, 0)
    assert "receive_maximum" not in encode_session(state)[0]


def test_queued_messages_expire() -> None:
    spec = subscriber(
        1,
        Queued(CLIENT, "a", 1, [[10, 4, 1]], 40, expires=[NOW, 0, NOW + 9, NOW]),
    )
    queue = spec.subscription("a").queue
    assert queue is not None
    assert (queue.expiry(), queue.expired(NOW)) == (NOW, [10, 13])
    assert snapshot(again(spec.state)) == snapshot(spec.state)
    spec.and_(Expired(CLIENT, "a", [10, 13], 20))
    assert list(queue.refs()) == [11, 12]
    assert (spec.state.queued, spec.state.queued_bytes) == (2, 20)
    spec.and_(Delivered(CLIENT, "a", 1, [1, 2], [11, 12], queued=20))
    assert spec.state.waiting == {}


def test_the_last_message_of_a_queue_expires_with_its_subscription() -> None:
    spec = subscriber(
        1,
        Queued(CLIENT, "a", 1, [10], 3, expires=NOW),
        Unsubscribed(CLIENT, ["a"]),
        Expired(CLIENT, "a", [10], 3),
    )
    assert (spec.state.subscriptions, spec.state.waiting) == ({}, {})
    assert (spec.state.queued, spec.state.queued_bytes) == (0, 0)


def test_sent_messages_do_not_expire() -> None:
    spec = subscriber(
        1,
        Queued(CLIENT, "a", 1, [10], 3, expires=NOW),
        Delivered(CLIENT, "a", 1, [1], [10], queued=3),
    )
    assert spec.state.inflight[1].ref == 10


def test_retain_as_published_is_kept_with_the_delivery() -> None:
    spec = subscriber(1, Delivered(CLIENT, "a", 1, [1], [10], retain=False, rap=True))
    flags = spec.state.inflight[1].flags
    assert (flags & QOS_MASK, bool(flags & RAP_FLAG)) == (1, True)
    assert again(spec.state).inflight[1].flags == flags


@pytest.mark.parametrize("event", [Refused(CLIENT, [1], [0x87]), Acked(CLIENT, [1], reasons=[128])])
def test_a_refused_delivery_is_over(event: Event) -> None:
    spec = subscriber(2, Delivered(CLIENT, "a", 2, [1, 2], [10, 11]), event)
    assert list(spec.state.inflight) == [2]
    assert (spec.state.releasing, spec.subscription("a").outstanding) == ({}, 1)


def test_a_share_hands_out_and_takes_back() -> None:
    group, member = "$share/g/a/#", "ann"
    node = NodeState()
    node.apply(SessionOpened(group, False, False, 5), 1, NOW_MS)
    node.apply(Subscribed(group, [("a/#", 1)]), 2, NOW_MS)
    node.apply(SessionOpened(member, False, False, 5), 3, NOW_MS)
    node.apply(Subscribed(member, [(group, 1)]), 4, NOW_MS)
    node.apply(Queued(group, "a/#", 1, [10, 11, 12], 30, expires=[NOW, 0, 0]), 5, NOW_MS)
    node.apply(Assigned(group, member, [10, 11], 20), 6, NOW_MS)
    node.apply(Delivered(member, group, 1, [1, 2], [10, 11]), 7, NOW_MS)
    waiting = node.sessions[group].subscriptions["a/#"]
    assert waiting.queue is not None
    assert (list(waiting.queue.refs()), waiting.queued_bytes) == ([12], 10)
    node.apply(Assigned(group, member, [99]), 8, NOW_MS)
    assert list(waiting.queue.refs()) == [12]
    node.apply(Returned(member, group, [1, 2], [10, 11]), 9, NOW_MS)
    node.apply(Queued(group, "a/#", 1, [10, 11], 20, expires=[NOW, 0], behind=0), 10, NOW_MS)
    assert node.sessions[member].inflight == {}
    assert node.sessions[member].subscriptions[group].outstanding == 0
    assert list(waiting.queue.refs()) == [10, 11, 12]
    assert waiting.queue.expiries(3) == [NOW, 0, 0]
    assert node.sessions[group].queued == 3


def test_a_will_waits_for_its_delay_behind_the_connection() -> None:
    spec = given(
        opened5(expiry=60),
        WillArmed(CLIENT, "w", 1, False, 3, 2, 30, blocks=[2]),
        SessionClosed(CLIENT, "closed"),
    )
    assert spec.state.will == Will("w", 1, False, position(2, 0), 30)
    assert again(spec.state).will == spec.state.will
    assert spec.and_(WillCancelled(CLIENT)).state.will is None


def retained(qos: int = 1) -> tuple[MessagePublished, list[bytes]]:
    event = published(qos, [("t", b"one"), ("u", b"two")], [1, 2], retain=True)
    event.blocks, event.block_of = [len(BLOCK)], [1, 0]
    return event, [BLOCK, b"one", b"two"]


def test_retained_messages_have_properties_and_expire() -> None:
    node = NodeState()
    event, pieces = retained()
    node.apply(event, 5, NOW_MS, pieces)
    assert node.retained.get("t") == RetainedMessage("t", b"one", 1, 5, BLOCK, NOW + 5, CLIENT)
    assert node.retained.get("u") == RetainedMessage("u", b"two", 1, 6, publisher=CLIENT)
    assert node.retained.expiry() == NOW + 5
    assert (node.retained.expired(NOW + 4), node.retained.expired(NOW + 5)) == ([], ["t"])
    node.apply(RetainedExpired(["t"]), 7, NOW_MS)
    assert [one.topic for one in node.retained.all()] == ["u"]
    assert (node.retained.expired(NOW + 5), node.retained.expiry()) == ([], 0)


def test_a_retained_message_of_qos_2_expires_counted_from_its_publication() -> None:
    node = NodeState()
    event, pieces = retained(2)
    node.apply(SessionOpened(CLIENT, False, False, 5), 1, NOW_MS)
    node.apply(event, 5, NOW_MS, pieces)
    assert node.retained.pending(CLIENT)[0].expires == NOW + 5
    node.apply(Released(CLIENT, [1], [5]), 9, NOW_MS + 3000)
    assert node.retained.get("t") == RetainedMessage("t", b"one", 2, 5, BLOCK, NOW + 5, CLIENT)


def test_topics_that_are_overwritten_leave_no_trace() -> None:
    node = NodeState()
    for at in range(5000):
        event, pieces = retained()
        node.apply(event, 5 + 2 * at, NOW_MS + 1000 * at, pieces)
    assert len(node.retained._expiring._times) < 3000
    assert node.retained.expiry() == NOW + 4999 + 5
    assert node.retained.expired(NOW + 5000) == []


@pytest.mark.parametrize(
    "message",
    [
        RetainedMessage("t", b"x", 1, 9),
        RetainedMessage("t", b"x", 2, 9, b"\1\0"),
        RetainedMessage("t", b"x", 0, 9, BLOCK, NOW),
        RetainedMessage("t", b"x", 2, 9, BLOCK, NOW, "Zoë"),
        RetainedMessage("t", b"x", 1, 9, publisher="p" * 65_535),
    ],
)
def test_the_projections_keep_a_retained_message(message: RetainedMessage) -> None:
    entry = StoredEntry(RETAINED, "t", 9, 0, retained_body(message))
    assert retained_of(entry) == message


def recorded(said: list[StateEvent]) -> Record:
    """A record with what a checkpoint or a cut repeats."""
    at, pieces = 0, []
    for one in said:
        event = one.event
        assert isinstance(event, MessagesCarried | RetainedSnapshot)
        event.at = at + sum(event.blocks)
        at += one.size
        pieces += one.payloads
    data = encode_record(
        previous=GENESIS,
        node="n",
        time_ms=NOW_MS + 60_000,
        events=[one.event for one in said],
        payloads=pieces,
    )
    return decode_record(9, data)


@pytest.mark.parametrize("publishers", [(), ("p",), ("p", "q", "r")])
def test_a_cut_carries_all_that_receivers_may_be_sent(publishers: tuple[str, ...]) -> None:
    messages = {
        10: Message(b"t", b"one", BLOCK, NOW + 5),
        20: Message(b"u", b"two"),
        30: Message(b"t", b"three", b"\1\0"),
        31: Message(b"t", b"four", BLOCK, NOW + 7),
        32: Message(b"t", b"five", BLOCK, NOW + 7, True),
    }
    if publishers:
        messages = {
            ref: one._replace(publisher=publishers[ref % len(publishers)])
            for ref, one in messages.items()
        }
    store = MessageStore(1 << 20)
    store.add_record(recorded(list(repeat_messages(messages.items(), {10}))))
    assert {ref: store.get(ref) for ref in messages} == messages
    plain = next(iter(repeat_messages([(20, messages[20])], set()))).event
    new = {"blocks", "block_of", "expires", "as_retained"}
    assert not new & field_values(plain).keys()


def test_a_checkpoint_repeats_retained_messages_with_properties_and_expiry() -> None:
    node = NodeState()
    event, pieces = retained()
    node.apply(event, 5, NOW_MS, pieces)
    record = recorded(list(repeat_retained(node, ["t", "u"])))
    again = NodeState()
    for index, one in record.events():
        assert isinstance(one, RetainedSnapshot)
        again.apply(one, 100 + index, record.time_ms, record.pieces(one))
    assert [(one.topic, one.payload, one.block, one.expires) for one in again.retained.all()] == [
        ("t", b"one", BLOCK, NOW + 5),
        ("u", b"two", b"", 0),
    ]


@pytest.mark.parametrize("publishers", [["p"], ["p", "q", "p"], ["p", "", "q"], ["", "", ""]])
def test_a_checkpoint_repeats_the_publishers_of_retained_messages(publishers: list[str]) -> None:
    node = NodeState()
    held = [
        RetainedMessage(f"t{at}", b"x", 1, at, publisher=publisher)
        for at, publisher in enumerate(publishers, 5)
    ]
    for message in held:
        node.retained.load(message)
    record = recorded(list(repeat_retained(node, [message.topic for message in held])))
    again = NodeState()
    for index, one in record.events():
        assert isinstance(one, RetainedSnapshot)
        assert ("publishers" in field_values(one)) is any(publishers)
        again.apply(one, 100 + index, record.time_ms, record.pieces(one))
    assert [one.publisher for one in again.retained.all()] == publishers
    store = MessageStore(1 << 20)
    store.add_record(record)
    base = position(record.sequence, 0)
    assert [store.get(base + at).publisher for at in range(len(held))] == publishers


def test_a_message_that_waits_for_pubrel_is_repeated_without_its_publisher() -> None:
    """It is that of the session itself."""
    node = NodeState()
    event, pieces = retained(2)
    node.apply(SessionOpened(CLIENT, False, False, 5), 1, NOW_MS)
    node.apply(event, 5, NOW_MS, pieces)
    (said,) = [
        one for one in repeat_session(node, CLIENT) if isinstance(one.event, RetainedSnapshot)
    ]
    assert "publishers" not in field_values(said.event)
    record = recorded([said])
    again = NodeState()
    for _, one in record.events():
        assert isinstance(one, RetainedSnapshot)
        again.retained.repeated(one, 100, record.pieces(one))
    assert again.retained.pending(CLIENT) == node.retained.pending(CLIENT)
    assert {one.publisher for one in again.retained.pending(CLIENT)} == {CLIENT}
