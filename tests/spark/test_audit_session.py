"""The audit of one session as Spark's tasks run it, without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokenlogs import at, closed, delivered, opened

from eventstore.format import Subscribed, Unsubscribed
from projections.audit import UNEXPECTED, Rule
from spark.audit.expected_deliveries import OWED_FLAG
from spark.audit.facts.event_codec import pack_events, packed_item
from spark.audit.facts.log_summary import BEYOND_ALL, LogSummary
from spark.audit.session_checker import BEGUN, COMPLETED, SessionChecker, SessionMark
from spark.audit.session_result_rows import SessionResults

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventstore.format import Event, Position

LOG = LogSummary("n", at(1), at(100_000), 0, 0, BEYOND_ALL, BEYOND_ALL)


def run(
    steps: Sequence[tuple[Event, Position]],
    owed: Sequence[tuple[Position, Position, str | None]] = (),
    marks: Sequence[SessionMark] = (),
) -> dict[str, int]:
    """Audit a session; return how much was wrong, by rule."""
    results = SessionResults()
    one = SessionChecker(LOG, marks, "s", results)
    one.happened(pack_events([packed_item(event, place, 0, 0) for event, place in steps]), None)
    for place, ref, topic_filter in owed:
        one.owed(place, ref, topic_filter)
    one.finish()
    counts = results.totals.counts
    return {name.removeprefix("wrong "): count for name, count in counts.items() if "wrong" in name}


def test_violations_of_one_event_are_all_counted() -> None:
    refs = [at(2, number) for number in range(5000)]
    steps = [
        (opened(), at(1)),
        (Subscribed("s", [("t", 1)]), at(1, 1)),
        (delivered(*refs), at(3)),
    ]
    assert run(steps) == {UNEXPECTED: 5000}


def test_retained_messages_are_owed_until_the_filter_changes() -> None:
    grant = (Subscribed("s", [("r/#", 1)]), at(3))
    begin = [(opened(), at(1)), grant]
    owed = [(at(3), at(2), "r/#")]
    later = (Subscribed("s", [("x", 1)]), at(4))
    assert run([*begin, later], owed) == {Rule.UNDELIVERED: 1}
    assert run([*begin, (Unsubscribed("s", ["r/+"]), at(3, 1)), later], owed) == {
        Rule.UNDELIVERED: 1,
        Rule.NO_SUBSCRIPTION: 1,
    }
    assert run([*begin, (Unsubscribed("s", ["r/#"]), at(3, 1)), later], owed) == {}
    assert run([*begin, (Subscribed("s", [("r/#", 0)]), at(3, 1)), later], owed) == {}
    again = [*begin, (Subscribed("s", [("r/#", 1)]), at(3, 1)), later]
    assert run(again, [*owed, (at(3, 1), at(2), "r/#")]) == {Rule.UNDELIVERED: 1}
    assert run([*begin, (Unsubscribed("s", ["r/#"]), at(4))], owed) == {Rule.UNDELIVERED: 1}


def test_a_message_of_two_subscriptions_is_expected_once() -> None:
    results = SessionResults()
    one = SessionChecker(LOG, (), "s", results)
    steps = [(opened(), at(1)), (Subscribed("s", [("t", 1), ("#", 2)]), at(1, 1))]
    after = [(delivered(at(2), qos=2), at(2, 1))]
    one.happened(
        pack_events([packed_item(event, place, 0, 0) for event, place in (*steps, *after)]), None
    )
    for granted in (1, 2):
        one.expected(at(2), at(2), "t", 0, 2 | granted << 2 | OWED_FLAG, 7)
    one.finish()
    assert results.totals.counts[f"cases {Rule.UNDELIVERED}"] == 1
    assert not any("wrong" in name for name in results.totals.counts)


def test_marks_count_for_sessions_that_there_are() -> None:
    """Whatever there is of them before, between and after the lives of a session."""
    marks = [
        SessionMark(at(number, index), kind, None)
        for number in range(2, 60, 2)
        for index, kind in enumerate((BEGUN, COMPLETED))
    ]
    first = [(opened(clean=True), at(11)), (closed(), at(11, 1))]
    assert run(first, marks=marks) == {}
    second = [(opened(clean=True), at(31)), (closed(), at(35))]
    assert run([*first, *second], marks=marks) == {"checkpoint": 2}
