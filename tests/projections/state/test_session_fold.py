"""The effect of every event on a session's state."""

from dataclasses import asdict
from typing import Any

import orjson
import pytest
from specification import (
    CLIENT,
    START_MS,
    STEP_MS,
    closed,
    delivered,
    given,
    opened,
    published,
    queued,
    snapshot,
    subscribed,
    subscriber,
)

from eventstore.format.event_parsing import Event
from eventstore.format.events import (
    Acked,
    Completed,
    MessageDropped,
    Received,
    Redelivered,
    Released,
    ReplayOpened,
    ReplayReached,
    SessionOpened,
    SessionTakenOver,
    Unsubscribed,
    WillArmed,
    WillCancelled,
    WillFired,
)
from eventstore.format.positions import position
from projections.state.session import ReplayState, SessionState, Will, evolve
from projections.state.snapshot import decode_session, encode_session
from projections.state.waiting_queue import RETAIN_FLAG, waiting


def test_a_session_begins_empty_and_unconnected() -> None:
    state = SessionState(CLIENT)
    assert not state.connected
    assert [state.subscriptions, state.inflight, state.releasing, state.inbound] == [{}] * 4
    assert (state.queued, state.queued_bytes, state.last_pid, state.will) == (0, 0, 0, None)


def test_opened_marks_the_session_as_connected() -> None:
    state = given(
        SessionOpened(CLIENT, False, False, 3, keep_alive=60, generation=7, user="ann", expiry=90)
    ).state
    assert (state.connected, state.clean, state.generation) == (True, False, 7)
    assert (state.level, state.user, state.expiry) == (3, "ann", 90)


@pytest.mark.mqtt("MQTT-3.1.2-6")
def test_a_session_that_is_not_resumed_starts_empty() -> None:
    spec = subscriber(
        1,
        published(2, [("t", b"x")], [5]),
        delivered("a", 1, [1, 2], [100, 101]),
        delivered("a", 2, [3], [102]),
        Received(CLIENT, [3]),
        queued("a", 1, [103], 4),
        closed(),
        opened(resumed=False, generation=2),
    )
    assert snapshot(spec.state) == {
        **snapshot(given(opened(generation=2)).state),
        "closed_ms": spec.state.closed_ms,
    }


@pytest.mark.mqtt("MQTT-3.1.2-4")
def test_a_resumed_session_keeps_everything() -> None:
    spec = subscriber(
        1,
        delivered("a", 1, [1], [100]),
        queued("a", 1, [103], 4),
        published(2, [("t", b"x")], [5]),
        closed(),
    )
    before = snapshot(spec.state)
    after = snapshot(spec.and_(opened(resumed=True, generation=2)).state)
    assert {key for key in after if after[key] != before[key]} == {"connected", "generation"}


def test_opening_forgets_the_will_of_the_connection_before() -> None:
    spec = given(opened(), WillArmed(CLIENT, "w", 1, False, 3, 0), opened(resumed=True))
    assert spec.state.will is None


def test_closed_keeps_the_time_and_everything_else() -> None:
    spec = subscriber(1, delivered("a", 1, [1], [100]))
    before = snapshot(spec.state)
    after = snapshot(spec.and_(closed()).state)
    assert after == {**before, "connected": False, "closed_ms": START_MS + 4 * STEP_MS}


def test_taken_over_changes_nothing_by_itself() -> None:
    spec = subscriber()
    before = snapshot(spec.state)
    assert snapshot(spec.and_(SessionTakenOver(CLIENT, 1)).state) == before


@pytest.mark.mqtt("MQTT-3.8.4-3")
def test_subscribing_again_changes_the_qos_and_nothing_else() -> None:
    spec = subscriber(
        2,
        delivered("a", 2, [1], [100]),
        queued("a", 2, [101], 5),
        subscribed(("a", 1)),
    )
    held = spec.subscription("a")
    assert (held.qos, held.active, held.outstanding) == (1, True, 1)
    assert list(held.queue or ()) == [waiting(101, 2, retain=False)]
    assert spec.state.inflight[1].flags == 2


def test_an_unsubscribed_filter_without_messages_is_removed() -> None:
    spec = given(opened(), subscribed(("a", 1), ("b", 1)), Unsubscribed(CLIENT, ["a", "unknown"]))
    assert list(spec.state.subscriptions) == ["b"]


@pytest.mark.mqtt("MQTT-3.10.4-3")
def test_messages_in_flight_and_queued_outlive_the_subscription() -> None:
    spec = subscriber(
        1,
        delivered("a", 1, [1], [100]),
        queued("a", 1, [101], 5),
        Unsubscribed(CLIENT, ["a"]),
    )
    assert spec.state.active() == []
    assert spec.subscription("a").outstanding == 1
    spec.and_(Acked(CLIENT, [1]))
    assert "a" in spec.state.subscriptions
    spec.and_(delivered("a", 1, [2], [101], queued=5))
    assert "a" in spec.state.subscriptions
    spec.and_(Acked(CLIENT, [2]))
    assert spec.state.subscriptions == {}
    assert (spec.state.queued, spec.state.queued_bytes) == (0, 0)


def test_an_unsubscribed_filter_ends_when_its_queue_is_dropped() -> None:
    spec = subscriber(
        1,
        queued("a", 1, [101, 102], 5),
        Unsubscribed(CLIENT, ["a"]),
        MessageDropped(CLIENT, "removed", 2, filter="a", queued=5),
    )
    assert spec.state.subscriptions == {}
    assert (spec.state.queued, spec.state.queued_bytes) == (0, 0)


def test_subscribing_again_restores_the_filter() -> None:
    spec = subscriber(
        1,
        delivered("a", 1, [1], [100]),
        Unsubscribed(CLIENT, ["a"]),
        subscribed(("a", 2)),
        Acked(CLIENT, [1]),
    )
    held = spec.subscription("a")
    assert (held.active, held.qos, held.outstanding) == (True, 2, 0)


def test_a_delivery_for_an_unknown_filter_is_completed_and_removed() -> None:
    spec = given(opened(), delivered("gone", 1, [1], [100]))
    assert not spec.subscription("gone").active
    assert spec.and_(Acked(CLIENT, [1])).state.subscriptions == {}


def test_delivered_is_in_flight_in_the_order_of_delivery() -> None:
    spec = subscriber(
        1,
        delivered("a", 1, [7, 8], [100, 50]),
        delivered("a", 1, [3], [60], retain=True),
    )
    state = spec.state
    assert [(pid, sent.ref) for pid, sent in state.inflight.items()] == [(7, 100), (8, 50), (3, 60)]
    assert state.inflight[3].flags == 1 | RETAIN_FLAG
    assert state.inflight[7].sent_ms == START_MS + 3 * STEP_MS
    assert (state.last_pid, spec.subscription("a").outstanding) == (3, 3)


def test_delivered_from_the_queue_leaves_it_at_the_head() -> None:
    spec = subscriber(
        1,
        queued("a", 1, [100, 101], 10),
        queued("a", 2, [102], 4, retain=True),
    )
    assert (spec.state.queued, spec.state.queued_bytes) == (3, 14)
    spec.and_(delivered("a", 1, [1, 2], [100, 101], queued=10))
    assert list(spec.subscription("a").queue or ()) == [waiting(102, 2, retain=True)]
    assert (spec.state.queued, spec.state.queued_bytes) == (1, 4)
    spec.and_(delivered("a", 2, [3], [102], retain=True, queued=4))
    assert not spec.subscription("a").queue
    assert (spec.state.queued, spec.state.queued_bytes) == (0, 0)


def test_empty_payloads_leave_the_queue_as_well() -> None:
    spec = subscriber(
        1,
        queued("a", 1, [100], 0),
        delivered("a", 1, [1], [100], queued=0),
    )
    assert (spec.state.queued, len(spec.subscription("a").queue or ())) == (0, 0)


def test_drops_before_queueing_change_nothing() -> None:
    spec = subscriber(1, queued("a", 1, [100], 3))
    before = snapshot(spec.state)
    spec.and_(MessageDropped(CLIENT, "queue_messages", 4, [[200, 4, 1]], "a"))
    assert snapshot(spec.state) == before


def test_acked_completes_and_ignores_unknown_identifiers() -> None:
    spec = subscriber(1, delivered("a", 1, [1, 2, 3], [100, 101, 102])).and_(Acked(CLIENT, [2, 9]))
    assert list(spec.state.inflight) == [1, 3]
    assert spec.subscription("a").outstanding == 2


@pytest.mark.mqtt("MQTT-4.3.3-1")
def test_qos_2_outbound_goes_from_in_flight_to_releasing_to_done() -> None:
    spec = subscriber(2, delivered("a", 2, [1, 2], [100, 101]), Received(CLIENT, [2]))
    state = spec.state
    assert list(state.inflight) == [1]
    assert [(pid, sent.ref) for pid, sent in state.releasing.items()] == [(2, 101)]
    assert state.releasing[2].sent_ms == START_MS + 4 * STEP_MS
    assert spec.subscription("a").outstanding == 2
    spec.and_(Completed(CLIENT, [2]))
    assert (state.releasing, spec.subscription("a").outstanding) == ({}, 1)


def test_the_order_of_pubrecs_is_the_order_of_releasing() -> None:
    spec = subscriber(
        2,
        delivered("a", 2, [1, 2, 3], [100, 101, 102]),
        Received(CLIENT, [3, 1]),
        Received(CLIENT, [2]),
    )
    assert list(spec.state.releasing) == [3, 1, 2]


@pytest.mark.mqtt("MQTT-4.3.3-2")
def test_qos_2_inbound_waits_for_its_release() -> None:
    spec = given(opened(), published(2, [("t", b"a"), ("t", b"b"), ("u", b"c")], [9, 4, 5]))
    first = position(2, 0)
    assert spec.state.inbound == {9: first, 4: first + 1, 5: first + 2}
    spec.and_(Released(CLIENT, [4, 77], [first + 1, 1]))
    assert spec.state.inbound == {9: first, 5: first + 2}


@pytest.mark.parametrize(
    "event",
    [
        published(0, [("t", b"")], retain=True),
        published(1, [("t", b"")], [1]),
        published(2, [("t", b"")], will=True),
    ],
)
def test_other_publications_are_not_of_the_state(event: Event) -> None:
    spec = given(opened())
    before = snapshot(spec.state)
    assert snapshot(spec.and_(event).state) == before


def test_redelivered_sets_the_time_and_keeps_the_order() -> None:
    spec = subscriber(
        2,
        delivered("a", 2, [1, 2, 3], [100, 101, 102]),
        Received(CLIENT, [1]),
        Redelivered(CLIENT, [1, 2], "ack_wait"),
    )
    now = START_MS + 5 * STEP_MS
    assert list(spec.state.inflight) == [2, 3]
    assert spec.state.inflight[2].sent_ms == spec.state.releasing[1].sent_ms == now
    assert spec.state.inflight[3].sent_ms == now - 2 * STEP_MS


@pytest.mark.parametrize("event", [WillFired(CLIENT), WillCancelled(CLIENT)])
def test_a_will_is_armed_until_it_is_fired_or_cancelled(event: Event) -> None:
    spec = given(opened(), WillArmed(CLIENT, "w", 2, True, 3, 0))
    assert spec.state.will == Will("w", 2, True, position(2, 0))
    assert spec.and_(event).state.will is None


REPLAY = "$replay/10m/hall/#"


def replay_opened(**changes: Any) -> ReplayOpened:
    return ReplayOpened(CLIENT, REPLAY, {"": 100}, **changes)


def reached(through: int, **changes: Any) -> ReplayReached:
    return ReplayReached(CLIENT, REPLAY, {"": through}, **changes)


def test_a_replay_begins_after_a_position() -> None:
    spec = given(opened(), subscribed((REPLAY, 1)), replay_opened(start_ms=5, until_ms=9))
    replay = spec.state.replays[REPLAY].replay
    assert spec.subscription(REPLAY).replay is replay
    assert replay is not None
    assert asdict(replay) == asdict(
        ReplayState(
            "hall/#",
            {"": 100},
            start_ms=5,
            until_ms=9,
            through={"": 100},
            reached_ms=START_MS + 3 * STEP_MS,
        )
    )


def test_a_replay_of_the_last_messages_has_read_nothing_at_first() -> None:
    spec = given(opened(), subscribed((REPLAY, 1)), replay_opened(last=True))
    replay = spec.state.replays[REPLAY].replay
    assert replay is not None
    assert (replay.start, replay.through, replay.last) == ({"": 100}, {}, True)


def test_a_replay_goes_on_and_counts() -> None:
    spec = given(
        opened(),
        subscribed((REPLAY, 1)),
        replay_opened(),
        delivered(REPLAY, 1, [1, 2], [101, 102]),
        reached(103, sent=2, left_out={"expired": 1}),
        ReplayReached(
            CLIENT,
            REPLAY,
            {"p1": 7},
            sent=1,
            left_out={"expired": 2, "no_local": 1},
            gap={"p1": [3, 5]},
            state="live",
        ),
    )
    held = spec.subscription(REPLAY)
    replay = held.replay
    assert replay is not None
    assert (replay.through, replay.state, replay.sent) == ({"": 103, "p1": 7}, "live", 3)
    assert replay.left_out == {"expired": 3, "no_local": 1}
    assert replay.start == {"": 100}
    assert held.outstanding == 2
    assert spec.state.inflight[2].ref == 102


def test_a_checkpoint_and_the_states_read_from_it_do_not_follow_a_replay() -> None:
    opens = replay_opened()
    spec = given(opened(), subscribed((REPLAY, 1)), opens, reached(103, sent=2))
    parts = encode_session(spec.state)
    as_written = orjson.dumps(parts)
    first, second = decode_session(CLIENT, parts), decode_session(CLIENT, parts)
    further = reached(104, left_out={"expired": 1})
    spec.and_(further)
    evolve(first, further, position(9, 0), START_MS)
    held = second.replays[REPLAY].replay
    assert held is not None
    assert (held.through, held.left_out) == ({"": 103}, {})
    assert (orjson.dumps(parts), opens.start) == (as_written, {"": 100})


def test_subscribing_again_continues_a_replay() -> None:
    spec = given(opened(), subscribed((REPLAY, 1)), replay_opened(), reached(103, sent=2))
    before = spec.state.replays[REPLAY].replay
    spec.and_(closed(), opened(resumed=True, generation=2), subscribed((REPLAY, 2)))
    assert spec.state.replays[REPLAY].replay is before
    assert spec.subscription(REPLAY).qos == 2


def test_unsubscribing_ends_a_replay_and_its_deliveries_are_completed() -> None:
    spec = given(
        opened(),
        subscribed((REPLAY, 1)),
        replay_opened(),
        delivered(REPLAY, 1, [1], [101]),
        reached(101, sent=1),
        Unsubscribed(CLIENT, [REPLAY]),
    )
    assert spec.state.replays == {}
    assert spec.subscription(REPLAY).replay is None
    assert spec.state.inflight[1].ref == 101
    spec.and_(subscribed((REPLAY, 1)), replay_opened())
    assert spec.state.replays[REPLAY].replay is not None
    spec.and_(Unsubscribed(CLIENT, [REPLAY]), Acked(CLIENT, [1]))
    assert spec.state.subscriptions == {}


def test_a_new_session_has_no_replays() -> None:
    spec = given(opened(), subscribed((REPLAY, 1)), replay_opened(), closed(), opened())
    assert spec.state.replays == {}


def test_a_replay_whose_beginning_was_lost_is_ignored() -> None:
    assert given(opened(), reached(103)).state.replays == {}


def test_a_replay_is_in_the_snapshot_and_others_are_as_before() -> None:
    spec = given(
        opened(),
        subscribed(("a", 0), (REPLAY, 1), ("$replay/last/b", 0)),
        replay_opened(until={"": 900}, until_ms=7),
        ReplayOpened(CLIENT, "$replay/last/b", {"": 50}, last=True),
        reached(101, sent=1, left_out={"erased": 2}, state="live"),
        delivered(REPLAY, 1, [1], [101]),
    )
    parts = encode_session(spec.state)
    assert parts[0]["replays"][1] == [
        2,
        {
            "start": {"": 50},
            "last": True,
            "reached_ms": START_MS + 4 * STEP_MS,
        },
    ]
    again = decode_session(CLIENT, orjson.loads(orjson.dumps(parts)))
    assert snapshot(again) == snapshot(spec.state)
    assert encode_session(again) == parts
    assert "replays" not in encode_session(subscriber(0).state)[0]


def test_many_replays_are_several_parts() -> None:
    """A replay is not split, however long its filter is."""
    spec = given(opened())
    filters = [f"$replay/10m/{number}/{'x' * 60_000}" for number in range(6)]
    for one in filters:
        spec.and_(subscribed((one, 0)), ReplayOpened(CLIENT, one, {}, topic_filter=one[1:]))
    parts = encode_session(spec.state)
    assert len(parts) > 6
    assert all(len(orjson.dumps(part)) < 512 * 1024 for part in parts)
    assert snapshot(decode_session(CLIENT, parts)) == snapshot(spec.state)
