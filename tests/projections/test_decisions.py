"""The decisions of a session: given(events).when(command).then(events)."""

from collections.abc import Callable, Sequence

import pytest
from specification import (
    CLIENT,
    Specification,
    closed,
    delivered,
    given,
    opened,
    published,
    queued,
    subscribed,
    subscriber,
)

from actors.session.decisions import acknowledgements, queueing, subscribing
from actors.session.decisions.queueing import DeliveryDecision, DeliveryLimits
from eventstore.format.events import (
    Acked,
    Completed,
    MessageDropped,
    Received,
    Released,
    Subscribed,
    SubscriptionDenied,
    Unsubscribed,
)
from eventstore.format.positions import position, to_runs
from projections.state.session import SessionState

WIDE = DeliveryLimits(window=1000, queued_messages=1000, queued_bytes=10_000, batch_bytes=10_000)


def deliver(
    topic_filter: str,
    qos: int,
    refs: Sequence[int],
    *,
    sizes: Sequence[int] | None = None,
    limits: DeliveryLimits = WIDE,
    retain: bool = False,
    ready: bool = True,
) -> Callable[[SessionState], DeliveryDecision]:
    payloads = [bytes(size) for size in (sizes or [1] * len(refs))]

    def decide(state: SessionState) -> DeliveryDecision:
        return queueing.deliver(
            state,
            topic_filter,
            qos,
            refs,
            payloads,
            sum(map(len, payloads)),
            limits,
            retain=retain,
            ready=ready,
        )

    return decide


def dropped(reason: str, *refs: int, topic_filter: str = "a") -> MessageDropped:
    return MessageDropped(CLIENT, reason, len(refs), to_runs(refs), topic_filter)


# Packet identifiers.


@pytest.mark.mqtt("MQTT-2.3.1-2")
def test_packet_identifiers_start_at_1_and_increase() -> None:
    spec = subscriber().when(deliver("a", 1, [10, 11])).then(delivered("a", 1, [1, 2], [10, 11]))
    spec.and_(Acked(CLIENT, [1, 2])).when(deliver("a", 1, [12])).then(delivered("a", 1, [3], [12]))


@pytest.mark.mqtt("MQTT-2.3.1-1")
def test_packet_identifiers_begin_again_at_1_after_65535() -> None:
    spec = subscriber()
    spec.state.last_pid = 65_533
    assert acknowledgements.take_packet_ids(spec.state, 4) == [65_534, 65_535, 1, 2]
    spec.state.last_pid = 65_535
    assert acknowledgements.take_packet_ids(spec.state, 1) == [1]
    assert acknowledgements.take_packet_ids(spec.state, 0) == []


@pytest.mark.mqtt("MQTT-2.3.1-4")
def test_packet_identifiers_in_use_are_skipped_in_both_tables() -> None:
    spec = subscriber(
        2,
        delivered("a", 2, [1, 2, 3, 65_535], [10, 11, 12, 13]),
    ).and_(Received(CLIENT, [2]))
    spec.state.last_pid = 65_533
    assert acknowledgements.take_packet_ids(spec.state, 3) == [65_534, 4, 5]
    spec.state.last_pid = 0
    assert acknowledgements.take_packet_ids(spec.state, 2) == [4, 5]


def test_the_last_free_packet_identifier_is_found() -> None:
    spec = subscriber()
    used = [pid for pid in range(1, 65_536) if pid != 40_000]
    spec.and_(delivered("a", 1, used, list(range(100, 100 + len(used)))))
    assert acknowledgements.take_packet_ids(spec.state, 1) == [40_000]
    assert queueing.room(spec.state, spec.subscription("a"), 70_000) == 1


def test_messages_without_a_free_packet_identifier_wait() -> None:
    spec = given(opened(), subscribed(("a", 1), ("b", 1)))
    spec.and_(delivered("a", 1, list(range(1, 65_535)), list(range(100, 100 + 65_534))))
    wide = WIDE._replace(window=70_000)
    spec.when(deliver("b", 1, [7, 8], limits=wide)).then(
        delivered("b", 1, [65_535], [7]), queued("b", 1, [8], 1)
    )
    spec.when(deliver("b", 1, [9], limits=wide)).then(queued("b", 1, [9], 1))
    assert queueing.next_waiting(spec.state, 70_000, 10) == []
    spec.and_(Acked(CLIENT, [500, 600]))
    spec.state.last_pid = 65_535
    (run,) = queueing.next_waiting(spec.state, 70_000, 10)
    assert run.refs == [8, 9]
    assert acknowledgements.take_packet_ids(spec.state, 2) == [500, 600]


# Windows.


def test_the_window_limits_sent_messages_and_the_rest_is_queued() -> None:
    narrow = WIDE._replace(window=2)
    spec = (
        subscriber()
        .when(deliver("a", 1, [10, 11, 12, 13], limits=narrow))
        .then(delivered("a", 1, [1, 2], [10, 11]), queued("a", 1, [12, 13], 2))
    )
    spec.when(deliver("a", 1, [14], limits=narrow)).then(queued("a", 1, [14], 1))


def test_qos_2_keeps_its_place_in_the_window_until_pubcomp() -> None:
    narrow = WIDE._replace(window=1)
    spec = (
        subscriber(2).when(deliver("a", 2, [10], limits=narrow)).then(delivered("a", 2, [1], [10]))
    )
    spec.and_(Received(CLIENT, [1]))
    spec.when(deliver("a", 2, [11], limits=narrow)).then(queued("a", 2, [11], 1))
    assert queueing.next_waiting(spec.state, 1, 10) == []
    spec.and_(Completed(CLIENT, [1]))
    (run,) = queueing.next_waiting(spec.state, 1, 10)
    assert run.refs == [11]


def test_windows_are_of_subscriptions_not_of_sessions() -> None:
    narrow = WIDE._replace(window=1)
    spec = given(opened(), subscribed(("a", 1), ("b", 1)))
    spec.when(deliver("a", 1, [10, 11], limits=narrow)).then(
        delivered("a", 1, [1], [10]), queued("a", 1, [11], 1)
    )
    spec.when(deliver("b", 1, [12], limits=narrow)).then(delivered("b", 1, [2], [12]))


@pytest.mark.mqtt("MQTT-4.6.0-6")
def test_no_message_overtakes_waiting_ones() -> None:
    spec = subscriber().and_(queued("a", 1, [9], 1))
    spec.when(deliver("a", 1, [10])).then(queued("a", 1, [10], 1))


def test_a_window_smaller_than_the_outstanding_messages_has_no_room() -> None:
    spec = subscriber().and_(delivered("a", 1, [1, 2, 3], [7, 8, 9]))
    assert queueing.room(spec.state, spec.subscription("a"), 1) == 0
    spec.when(deliver("a", 1, [10], limits=WIDE._replace(window=1))).then(queued("a", 1, [10], 1))


def test_one_batch_sends_so_many_bytes_but_always_one_message() -> None:
    small = WIDE._replace(batch_bytes=10)
    subscriber().when(deliver("a", 1, [1, 2, 3], sizes=[6, 4, 1], limits=small)).then(
        delivered("a", 1, [1, 2], [1, 2]), queued("a", 1, [3], 1)
    )
    subscriber().when(deliver("a", 1, [1, 2], sizes=[600, 4], limits=small)).then(
        delivered("a", 1, [1], [1]), queued("a", 1, [2], 4)
    )


@pytest.mark.parametrize(
    ("sizes", "limit", "count"),
    [([], 5, 0), ([9], 5, 1), ([5, 0, 0], 5, 3), ([5, 1], 5, 1), ([9, 1], 0, 1), ([1, 1], -1, 1)],
)
def test_within(sizes: list[int], limit: int, count: int) -> None:
    assert queueing.within([bytes(size) for size in sizes], limit) == count


# Queues.


@pytest.mark.parametrize("connected", [True, False])
def test_everything_is_queued_for_a_session_that_is_not_ready(*, connected: bool) -> None:
    spec = subscriber() if connected else subscriber().and_(closed())
    spec.when(deliver("a", 1, [10, 11], ready=False)).then(queued("a", 1, [10, 11], 2))


def test_the_count_limit_of_the_session_drops_the_newest() -> None:
    limits = WIDE._replace(queued_messages=3)
    spec = given(opened(), subscribed(("a", 1), ("b", 1)), queued("b", 1, [8, 9], 2))
    spec.when(deliver("a", 1, [10, 11, 12], limits=limits, ready=False)).then(
        queued("a", 1, [10], 1), dropped("queue_messages", 11, 12)
    )
    spec.when(deliver("a", 1, [13], limits=limits, ready=False)).then(dropped("queue_messages", 13))


def test_the_byte_limit_of_the_session_drops_the_newest() -> None:
    limits = WIDE._replace(queued_bytes=10)
    spec = subscriber().and_(queued("a", 1, [9], 4))
    spec.when(deliver("a", 1, [10, 11, 12], sizes=[3, 4, 1], limits=limits, ready=False)).then(
        queued("a", 1, [10], 3), dropped("queue_bytes", 11, 12)
    )


def test_the_limits_are_reached_exactly() -> None:
    limits = WIDE._replace(queued_bytes=10, queued_messages=2)
    subscriber().when(deliver("a", 1, [1, 2], sizes=[5, 5], limits=limits, ready=False)).then(
        queued("a", 1, [1, 2], 10)
    )


def test_both_limits_at_once() -> None:
    limits = WIDE._replace(queued_bytes=5, queued_messages=3)
    subscriber().when(
        deliver("a", 1, [1, 2, 3, 4], sizes=[3, 3, 3, 3], limits=limits, ready=False)
    ).then(queued("a", 1, [1], 3), dropped("queue_bytes", 2, 3, 4))
    subscriber().when(
        deliver("a", 1, [1, 2, 3, 4], sizes=[1, 1, 1, 9], limits=limits, ready=False)
    ).then(queued("a", 1, [1, 2, 3], 3), dropped("queue_messages", 4))


def test_empty_payloads_fit_when_the_bytes_are_used_up() -> None:
    limits = WIDE._replace(queued_bytes=4)
    spec = subscriber().and_(queued("a", 1, [9], 4))
    spec.when(deliver("a", 1, [10, 11], sizes=[0, 1], limits=limits, ready=False)).then(
        queued("a", 1, [10], 0), dropped("queue_bytes", 11)
    )


def test_limits_lowered_below_the_queue_drop_new_messages() -> None:
    limits = WIDE._replace(queued_bytes=1, queued_messages=1)
    spec = subscriber().and_(queued("a", 1, [7, 8, 9], 30))
    spec.when(deliver("a", 1, [10], sizes=[1], limits=limits)).then(dropped("queue_messages", 10))
    limits = WIDE._replace(queued_bytes=1)
    spec.when(deliver("a", 1, [10], sizes=[1], limits=limits)).then(dropped("queue_bytes", 10))


def test_the_window_and_the_queue_and_the_end_of_both() -> None:
    limits = WIDE._replace(window=1, queued_messages=1)
    subscriber().when(deliver("a", 1, [1, 2, 3], limits=limits)).then(
        delivered("a", 1, [1], [1]), queued("a", 1, [2], 1), dropped("queue_messages", 3)
    )


def test_retained_is_kept_in_every_event() -> None:
    limits = WIDE._replace(window=1)
    subscriber().when(deliver("a", 1, [1, 2], limits=limits, retain=True)).then(
        delivered("a", 1, [1], [1], retain=True), queued("a", 1, [2], 1, retain=True)
    )


def test_a_delivery_for_a_filter_that_was_unsubscribed_meanwhile() -> None:
    spec = subscriber().and_(Unsubscribed(CLIENT, ["a"]))
    spec.when(deliver("a", 1, [10])).then(delivered("a", 1, [1], [10]))
    spec.when(lambda state: acknowledgements.acked(state, [1])).then(Acked(CLIENT, [1]))
    assert spec.state.subscriptions == {}


# What waits.


def drain(spec: Specification, window: int, most: int = 1000) -> list[int]:
    """Deliver what waits and may go; return the positions in the order in which they go."""
    order = []
    for run in queueing.next_waiting(spec.state, window, most):
        pids = acknowledgements.take_packet_ids(spec.state, len(run.refs))
        queue = list(run.subscription.queue or ())[: len(run.refs)]
        assert [entry >> 3 for entry in queue] == run.refs, "not what stands at the head"
        assert {entry & 7 for entry in queue} == {run.retain << 2 | run.qos}
        spec.and_(
            delivered(run.subscription.filter, run.qos, pids, run.refs, retain=run.retain, queued=0)
        )
        order += run.refs
    return order


def test_queues_are_merged_by_position() -> None:
    spec = given(opened(), subscribed(("a", 1), ("b", 1), ("c", 2)))
    spec.and_(
        queued("a", 1, [10, 13], 0),
        queued("b", 1, [11, 12, 15], 0),
        queued("c", 2, [9, 14], 0),
    )
    assert drain(spec, 100) == [9, 10, 11, 12, 13, 14, 15]
    assert spec.state.queued == 0


@pytest.mark.mqtt("MQTT-4.6.0-6")
def test_a_queue_keeps_its_order_even_if_its_positions_go_back() -> None:
    """Retained messages and QoS 2 messages released late are older than what waits already."""
    spec = given(opened(), subscribed(("a", 1), ("b", 1)))
    spec.and_(queued("a", 1, [20, 5, 30], 0), queued("b", 1, [10, 25], 0))
    order = drain(spec, 100)
    assert sorted(order) == [5, 10, 20, 25, 30]
    assert [ref for ref in order if ref in {20, 5, 30}] == [20, 5, 30]
    assert spec.state.queued == 0


def test_runs_are_cut_where_qos_or_retain_change() -> None:
    spec = subscriber(2).and_(
        queued("a", 1, [1, 2], 0),
        queued("a", 2, [3], 0),
        queued("a", 2, [4], 0, retain=True),
        queued("a", 2, [5], 0, retain=True),
    )
    runs = queueing.next_waiting(spec.state, 100, 100)
    assert [(run.qos, run.retain, run.refs) for run in runs] == [
        (1, False, [1, 2]),
        (2, False, [3]),
        (2, True, [4, 5]),
    ]


def test_windows_and_the_maximum_limit_sent_messages() -> None:
    spec = given(opened(), subscribed(("a", 1), ("b", 1)))
    spec.and_(queued("a", 1, [1, 2, 3], 0), queued("b", 1, [4, 5, 6], 0))
    assert [run.refs for run in queueing.next_waiting(spec.state, 2, 100)] == [[1, 2], [4, 5]]
    assert [run.refs for run in queueing.next_waiting(spec.state, 3, 4)] == [[1, 2, 3], [4]]
    assert drain(spec, 2, 3) == [1, 2, 4]
    assert drain(spec, 2) == [5]
    assert drain(spec, 2) == []


def test_messages_of_an_unsubscribed_filter_are_sent_in_order() -> None:
    spec = given(opened(), subscribed(("a", 1), ("b", 1)))
    spec.and_(queued("a", 1, [1], 0), queued("b", 1, [2], 0), Unsubscribed(CLIENT, ["a"]))
    assert drain(spec, 100) == [1, 2]


# Acknowledgements.


@pytest.mark.mqtt("MQTT-4.3.2-2")
def test_pubacks_complete_qos_1_deliveries_only() -> None:
    spec = subscriber(2)
    spec.and_(delivered("a", 1, [1, 2], [10, 11]), delivered("a", 2, [3], [12]))
    spec.when(lambda state: acknowledgements.acked(state, [2, 3, 2, 900, 1])).then(
        Acked(CLIENT, [2, 1])
    )
    spec.when(lambda state: acknowledgements.acked(state, [1, 3])).then_nothing()


@pytest.mark.mqtt("MQTT-4.3.3-1")
def test_pubrec_and_pubcomp_move_qos_2_deliveries_on() -> None:
    spec = subscriber(2)
    spec.and_(delivered("a", 2, [1, 2], [10, 11]), delivered("a", 1, [3], [12]))
    spec.when(lambda state: acknowledgements.completed(state, [1])).then_nothing()
    spec.when(lambda state: acknowledgements.received(state, [3])).then_nothing()
    spec.when(lambda state: acknowledgements.received(state, [1, 1, 3])).then(Received(CLIENT, [1]))
    spec.when(lambda state: acknowledgements.received(state, [1])).then_nothing()
    spec.when(lambda state: acknowledgements.completed(state, [2, 1, 1])).then(
        Completed(CLIENT, [1])
    )
    spec.when(lambda state: acknowledgements.completed(state, [1])).then_nothing()


@pytest.mark.mqtt("MQTT-4.3.3-2")
def test_pubrel_releases_once_in_its_own_order() -> None:
    spec = given(opened(), published(2, [("t", b"a"), ("t", b"b"), ("t", b"c")], [4, 5, 6]))
    first = position(2, 0)
    spec.when(lambda state: acknowledgements.released(state, [6, 4, 6, 99])).then(
        Released(CLIENT, [6, 4], [first + 2, first])
    )
    spec.when(lambda state: acknowledgements.released(state, [6, 4])).then_nothing()
    assert spec.state.inbound == {5: first + 1}


# Subscribing.


def test_filters_are_granted_at_most_at_the_highest_qos() -> None:
    spec = given(opened())
    grant = subscribing.subscribe(spec.state, [("a", 0), ("b", 1), ("c", 2)], max_qos=1)
    assert grant.codes == [0, 1, 1]
    assert {text: one.qos for text, one in grant.granted.items()} == {"a": 0, "b": 1, "c": 1}
    spec.when(lambda _: grant).then(Subscribed(CLIENT, [("a", 0), ("b", 1), ("c", 1)]))


@pytest.mark.mqtt("MQTT-3.8.4-4")
def test_a_filter_twice_in_a_packet_is_as_in_two_packets() -> None:
    spec = given(opened())
    grant = subscribing.subscribe(spec.state, [("a", 2), ("a", 0)], max_qos=2)
    assert grant.codes == [2, 0]
    assert spec.and_(*grant.events).subscription("a").qos == 0


def test_refused_filters_are_not_granted() -> None:
    grant = subscribing.subscribe(given(opened()).state, [("$JS/API", 1), ("ok", 1)], max_qos=2)
    refused = subscribing.subscribe(given(opened()).state, [("$JS/API", 1)], max_qos=2)
    assert (grant.codes, [*grant.granted]) == ([0x8F, 1], ["ok"])
    assert (refused.codes, refused.granted) == ([0x8F], {})
    assert refused.events == [SubscriptionDenied(CLIENT, ["$JS/API"], [0x8F])]


def test_a_large_subscribe_is_split_into_events_that_fit_a_record() -> None:
    filters = [(f"{number:05}/" + "x" * 1000, 1) for number in range(500)]
    grant = subscribing.subscribe(given(opened()).state, filters, max_qos=2)
    assert len(grant.events) > 1
    told = [event.filters for event in grant.events if isinstance(event, Subscribed)]
    assert [entry for part in told for entry in part] == filters
    assert max(sum(len(name) for name, _ in part) for part in told) <= 65_536
