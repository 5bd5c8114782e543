"""The preview of a delivery equals the decision that is made afterwards."""

import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st
from specification import CLIENT, Specification, given, opened, subscribed

from actors.session.decisions import acknowledgements, delivery_preview, queueing
from actors.session.decisions.queueing import DeliveryLimits
from eventstore.format.events import Acked, Delivered, MessageDropped, Queued, Unsubscribed

LIMITS = DeliveryLimits(window=3, queued_messages=4, queued_bytes=30, batch_bytes=10_000)
FILTERS = ["a", "a/#", "+"]
OUTCOMES = {Delivered: "sent", Queued: "queued", MessageDropped: "dropped"}

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("deliver"), st.sampled_from(FILTERS), st.integers(1, 12), st.booleans()),
        st.tuples(st.just("ack"), st.integers(0, 5)),
        st.tuples(st.just("drain")),
        st.tuples(st.just("unsubscribe"), st.sampled_from(FILTERS)),
    ),
    max_size=30,
)


@settings(max_examples=150, deadline=None)
@drawn(steps=STEPS, receive_maximum=st.sampled_from([2, 65_535]))
def test_the_preview_equals_the_decision(
    steps: list[tuple[object, ...]], receive_maximum: int
) -> None:
    spec = given(opened(), subscribed(("a", 1), ("a/#", 1), ("+", 1)))
    spec.state.receive_maximum = receive_maximum
    ref = 100
    for step in steps:
        state = spec.state
        if step[0] == "deliver":
            _, topic_filter, size, ready = step
            ref += 1
            said = delivery_preview.preview_delivery(
                state, str(topic_filter), 1, LIMITS, "" if ready else "offline", int(str(size))
            )
            made = decided(spec, str(topic_filter), ref, int(str(size)), ready=bool(ready))
            assert said.outcome == made
            assert (said.outcome == "sent") == (said.reason == "")
            assert (said.outcome == "dropped") == (said.queue != "")
        elif step[0] == "ack" and state.inflight:
            spec.and_(Acked(CLIENT, [[*state.inflight][int(str(step[1])) % len(state.inflight)]]))
        elif step[0] == "unsubscribe":
            spec.and_(Unsubscribed(CLIENT, [str(step[1])]))
        elif step[0] == "drain":
            for run in queueing.next_waiting(state, LIMITS.window, 10):
                pids = acknowledgements.take_packet_ids(state, len(run.refs))
                spec.and_(
                    Delivered(
                        CLIENT, run.subscription.filter, 1, pids=pids, refs=run.refs, queued=0
                    )
                )


def decided(spec: Specification, topic_filter: str, ref: int, size: int, *, ready: bool) -> str:
    made = queueing.deliver(
        spec.state, topic_filter, 1, [ref], [bytes(size)], size, LIMITS, retain=False, ready=ready
    )
    (event,) = made.events
    spec.and_(event)
    return OUTCOMES[type(event)]


@pytest.mark.parametrize(
    ("outstanding", "receive_maximum", "reason"),
    [(2, 65_535, ""), (3, 65_535, "window"), (2, 2, "receive_maximum")],
)
def test_the_preview_has_the_reason_for_waiting(
    outstanding: int, receive_maximum: int, reason: str
) -> None:
    spec = given(opened(), subscribed(("a", 1)))
    spec.state.receive_maximum = receive_maximum
    for number in range(outstanding):
        decided(spec, "a", 10 + number, 1, ready=True)
    found = delivery_preview.preview_delivery(spec.state, "a", 1, LIMITS, "")
    assert found == ("queued" if reason else "sent", reason, "")
    found = delivery_preview.preview_delivery(spec.state, "a", 1, LIMITS, "reader")
    assert found == ("queued", "reader", "")


def test_the_forecast_names_the_full_queue() -> None:
    spec = given(opened(), subscribed(("a", 1)))
    for number in range(LIMITS.queued_messages):
        decided(spec, "a", 10 + number, 1, ready=False)
    found = delivery_preview.preview_delivery(spec.state, "a", 1, LIMITS, "offline")
    assert found == ("dropped", "offline", "queue_messages")
    spec = given(opened(), subscribed(("a", 1)))
    decided(spec, "a", 10, LIMITS.queued_bytes, ready=False)
    found = delivery_preview.preview_delivery(spec.state, "a", 1, LIMITS, "")
    assert found == ("dropped", "older", "queue_bytes")


def test_without_a_size_a_message_is_as_large_as_those_that_wait() -> None:
    spec = given(opened(), subscribed(("a", 1)))
    for number in range(3):
        decided(spec, "a", 10 + number, 9, ready=False)  # 27 of 30 bytes
    found = delivery_preview.preview_delivery(spec.state, "a", 1, LIMITS, "offline")
    assert found == ("dropped", "offline", "queue_bytes")
    assert (
        delivery_preview.preview_delivery(spec.state, "a", 1, LIMITS, "offline", 3).outcome
        == "queued"
    )
