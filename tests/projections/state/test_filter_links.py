"""Linked filters of a session: no waiting message is overtaken."""

from collections.abc import Callable, Sequence

import orjson
import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st
from specification import (
    CLIENT,
    Specification,
    delivered,
    given,
    opened,
    queued,
    snapshot,
    subscribed,
)

from actors.session.decisions import acknowledgements, queueing, subscribing
from actors.session.decisions.queueing import DeliveryLimits
from eventstore.format.event_parsing import Event
from eventstore.format.events import MessageDropped, Unsubscribed
from eventstore.format.positions import from_runs
from projections.state.filter_links import linked
from projections.state.session import SessionState
from projections.state.snapshot import decode_session, encode_session
from protocol.mqtt.topics import matches

LIMITS = DeliveryLimits(window=1, queued_messages=1000, queued_bytes=10_000, batch_bytes=10_000)
FILTERS = ["#", "+/x", "a/+", "a/x", "b/x", "b/y", "b/+", "c", "+"]
TOPICS = ["a/x", "a/y", "b/x", "b/y", "c"]


def unsubscribed(*filters: str) -> Unsubscribed:
    return Unsubscribed(CLIENT, list(filters))


def with_filters(*filters: str) -> Specification:
    return given(opened(), subscribed(*((one, 1) for one in filters)))


def deliver(topic_filter: str, ref: int) -> Callable[[SessionState], queueing.DeliveryDecision]:
    def decide(state: SessionState) -> queueing.DeliveryDecision:
        return queueing.deliver(
            state, topic_filter, 1, [ref], [b"x"], 1, LIMITS, retain=False, ready=True
        )

    return decide


def again(spec: Specification) -> Specification:
    """The same state, from its snapshot."""
    found = Specification()
    found.state = decode_session(CLIENT, orjson.loads(orjson.dumps(encode_session(spec.state))))
    found.sequence = spec.sequence
    return found


def groups(spec: Specification) -> set[frozenset[str]]:
    return {frozenset(linked(spec.state, one)) for one in spec.state.subscriptions}


def test_filters_are_linked_by_topics_that_both_match_and_by_chains() -> None:
    spec = with_filters("a/x", "b/x", "b/y", "c", "+/x")
    assert groups(spec) == {
        frozenset({"a/x", "b/x", "+/x"}),
        frozenset({"b/y"}),
        frozenset({"c"}),
    }
    spec.and_(subscribed(("b/+", 1)))
    assert groups(spec) == {frozenset({"a/x", "b/x", "+/x", "b/y", "b/+"}), frozenset({"c"})}


def test_many_filters_count_as_linked_only_if_many_have_wildcards() -> None:
    plain = with_filters(*(f"t/{n}" for n in range(500)), "u/#")
    assert len(groups(plain)) == 501
    reaching = with_filters(*(f"t/{n}/#" for n in range(33)))
    assert len(groups(reaching)) == 1


def test_a_long_filter_counts_as_linked_with_all() -> None:
    spec = with_filters("a", "b", "l" * 257)
    assert len(groups(spec)) == 1


@pytest.mark.mqtt("MQTT-4.6.0-6")
def test_messages_wait_at_the_end_of_the_last_linked_queue() -> None:
    spec = with_filters("a/x", "b/x", "c").and_(
        queued("a/x", 1, [1], 1), queued("b/x", 1, [2], 1), queued("c", 1, [3], 1)
    )
    spec.when(deliver("a/x", 4)).then(queued("a/x", 1, [4], 1))
    spec.and_(subscribed(("+/x", 1)))
    for ref, topic_filter in enumerate(["a/x", "+/x", "b/x"], 5):
        spec.when(deliver(topic_filter, ref)).then(queued("b/x", 1, [ref], 1))


@pytest.mark.mqtt("MQTT-4.6.0-6")
def test_linked_queues_go_out_one_after_the_other() -> None:
    spec = with_filters("a/x", "b/x", "c", "+/x").and_(
        queued("a/x", 1, [5, 6], 2), queued("b/x", 1, [2], 1), queued("c", 1, [3], 1)
    )
    for window, wanted in ((1, [3, 5]), (2, [3, 5, 6, 2])):
        runs = queueing.next_waiting(spec.state, window, 100)
        assert [ref for run in runs for ref in run.refs] == wanted


@pytest.mark.mqtt("MQTT-4.6.0-6")
def test_a_link_holds_until_nothing_waits_any_more() -> None:
    spec = with_filters("a/x", "+/x").and_(queued("a/x", 1, [1], 1), unsubscribed("+/x"))
    assert spec.state.all_linked
    spec = again(spec).and_(subscribed(("b/x", 1)))
    spec.when(deliver("b/x", 2)).then(queued("a/x", 1, [2], 1))
    spec.and_(delivered("a/x", 1, [1, 2], [1, 2], queued=2))
    assert not spec.state.all_linked
    spec.when(deliver("b/x", 3)).then(delivered("b/x", 1, [3], [3]))


def test_filters_without_links_leave_no_state() -> None:
    spec = with_filters("a/x", "b/x", "b/y", "+/y")
    assert not spec.and_(unsubscribed("+/y")).state.all_linked  # nothing waits
    spec.and_(queued("a/x", 1, [1], 1), unsubscribed("b/x"))
    assert not spec.state.all_linked
    spec.when(deliver("b/y", 2)).then(delivered("b/y", 1, [1], [2]))


def test_a_new_session_has_no_overlap_of_the_old_one() -> None:
    spec = with_filters("a/x", "+/x").and_(queued("a/x", 1, [1], 1), unsubscribed("+/x"))
    assert snapshot(spec.and_(opened()).state) == snapshot(given(opened()).state)


@pytest.mark.mqtt("MQTT-4.6.0-6")
def test_messages_of_a_removed_filter_are_queued_last() -> None:
    spec = with_filters("a/x", "+/x").and_(unsubscribed("+/x"), queued("a/x", 1, [1], 1))
    spec.when(deliver("+/x", 2)).then(queued("+/x", 1, [2], 1))
    spec.and_(subscribed(("b/x", 1)))
    spec.when(deliver("b/x", 3)).then(queued("+/x", 1, [3], 1))


def test_messages_of_a_linked_subscription_are_not_dropped() -> None:
    spec = with_filters("a/x", "b/x", "+/x", "c").and_(
        queued("a/x", 1, [1, 2], 2), queued("c", 1, [3], 1)
    )
    spec.when(lambda state: Events(subscribing.unsubscribe(state, ["+/x", "a/x", "c"]))).then(
        MessageDropped(CLIENT, "unsubscribed", 1, refs=[3], filter="c", queued=1),
        unsubscribed("+/x", "a/x", "c"),
    )


class Events:
    """What a decision returns that is nothing but events."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.events = events


class Client:
    """A session that gets random messages while its client subscribes and acknowledges."""

    def __init__(self) -> None:
        self.spec = given(opened())
        self.topics: dict[int, str] = {}
        self.sent: dict[str, list[int]] = {topic: [] for topic in TOPICS}

    def publish(self, topic: str, chosen: int, *, late: str | None) -> None:
        """A message matches some subscription, or one that went in the same turn."""
        matching = [one.filter for one in self.spec.state.active() if matches(one.filter, topic)]
        if late is not None and matches(late, topic):
            matching.append(late)
        if matching:
            ref = len(self.topics) + 1
            self.topics[ref] = topic
            self._take(deliver(matching[chosen % len(matching)], ref)(self.spec.state).events)

    def subscribe(self, topic_filter: str) -> None:
        self._take([subscribed((topic_filter, 1))])

    def unsubscribe(self, topic_filter: str) -> None:
        self._take(subscribing.unsubscribe(self.spec.state, [topic_filter]))

    def acknowledge(self) -> None:
        """The oldest delivery is completed, and more goes out."""
        if self.spec.state.inflight:
            event = acknowledgements.acked(self.spec.state, [next(iter(self.spec.state.inflight))])
            self._take([event] if event is not None else [])
        for run in queueing.next_waiting(self.spec.state, LIMITS.window, 100):
            pids = acknowledgements.take_packet_ids(self.spec.state, len(run.refs))
            size = len(run.refs)
            self._take([delivered(run.subscription.filter, run.qos, pids, run.refs, queued=size)])

    def _take(self, events: Sequence[Event]) -> None:
        self.spec.and_(*events)
        for event in events:
            if event.e == "Delivered":
                for ref in from_runs(event.refs):  # type: ignore[union-attr]
                    self.sent[self.topics[ref]].append(ref)


_STEPS = st.one_of(
    st.tuples(st.just("publish"), st.sampled_from(TOPICS)),
    st.tuples(st.just("publish"), st.sampled_from(TOPICS)),
    st.tuples(st.sampled_from(["subscribe", "unsubscribe"]), st.sampled_from(FILTERS)),
    st.tuples(st.sampled_from(["acknowledge", "again"]), st.none()),
)


@pytest.mark.mqtt("MQTT-4.6.0-6")
@for_all(st.lists(st.tuples(_STEPS, st.integers(0, 5)), max_size=60))
def test_no_message_overtakes_another_of_its_topic(
    steps: list[tuple[tuple[str, str | None], int]],
) -> None:
    client = Client()
    late: str | None = None
    for (what, which), chosen in steps:
        if what == "publish" and which is not None:
            client.publish(which, chosen, late=late)
        elif what == "subscribe" and which is not None:
            client.subscribe(which)
        elif what == "unsubscribe" and which is not None:
            client.unsubscribe(which)
            late = which
            continue
        elif what == "acknowledge":
            client.acknowledge()
        else:
            client.spec = again(client.spec)
        late = late if chosen else None
    for _ in range(200):
        client.acknowledge()
    assert not client.spec.state.queued
    assert not client.spec.state.all_linked
    for topic, refs in client.sent.items():
        assert refs == sorted(refs), topic
