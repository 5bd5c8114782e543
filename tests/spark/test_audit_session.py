"""The audit of one session as Spark's tasks run it, without Spark."""

import random
from collections.abc import Sequence

import orjson
from brokenlogs import at, closed, delivered, opened

from eventstore.format.event_parsing import Event
from eventstore.format.events import Subscribed, Unsubscribed
from eventstore.format.positions import Position
from projections.audit.audit_results import AuditResults
from projections.audit.event_codec import pack_events, packed_item
from projections.audit.expected_packs import REQUIRED
from projections.audit.log_summary import BEYOND_ALL, LogSummary
from projections.audit.rule_table import UNEXPECTED, Rule
from projections.audit.session_checker import BEGUN, COMPLETED, SessionChecker, SessionMark

LOG = LogSummary("n", at(1), at(100_000), 0, 0, BEYOND_ALL, BEYOND_ALL)


def run(
    steps: Sequence[tuple[Event, Position]],
    owed: Sequence[tuple[Position, Position, str | None]] = (),
    marks: Sequence[SessionMark] = (),
) -> dict[str, int]:
    """Audit a session; return how much was wrong, by rule."""
    results = AuditResults()
    one = SessionChecker(LOG, marks, "s", results)
    one.happened(pack_events([packed_item(event, place, 0, 0) for event, place in steps]), None)
    for place, ref, topic_filter in owed:
        one.required_replay(place, ref, topic_filter)
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


def test_retained_messages_must_be_sent_until_the_filter_changes() -> None:
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
    results = AuditResults()
    one = SessionChecker(LOG, (), "s", results)
    steps = [(opened(), at(1)), (Subscribed("s", [("t", 1), ("#", 2)]), at(1, 1))]
    after = [(delivered(at(2), qos=2), at(2, 1))]
    one.happened(
        pack_events([packed_item(event, place, 0, 0) for event, place in (*steps, *after)]), None
    )
    rows = [[at(2), at(2), 0, 0, 2 | granted << 2 | REQUIRED, 1, 0, 0] for granted in (1, 2)]
    one.expected_several(at(2), orjson.dumps([["t", "p"], rows]))
    one.finish()
    assert results.totals.counts[f"cases {Rule.UNDELIVERED}"] == 1
    assert not any("wrong" in name for name in results.totals.counts)


def test_packed_expectations_are_taken_in_the_order_of_the_log() -> None:
    """However they are packed, and wherever the packs of events begin."""
    chance = random.Random(1)
    for _ in range(200):
        steps: list[tuple[Event, Position]] = [
            (opened(), at(1)),
            (Subscribed("s", [("t", 1), ("#", 1)]), at(1, 1)),
        ]
        rows = []
        for number in range(2, 40):
            rows += [[at(number), at(number), number % 3, 0, 1 | 1 << 2 | REQUIRED, 2, 0, 0]] * 2
            if chance.random() < 0.9:
                one_sent = delivered(at(number), topic_filter="#", pid=number)
                steps.append((one_sent, at(number, 1)))
        packs = [(steps[0][1], "events", steps[: (cut := chance.randrange(2, len(steps)))])]
        packs += [(steps[cut][1], "events", steps[cut:])]
        chance.shuffle(rows)
        while rows:
            some = sorted(rows[: (count := chance.randrange(1, 20))])
            rows = rows[count:]
            packs.append((some[0][0], "", some))
        results = AuditResults()
        one = SessionChecker(LOG, (), "s", results)
        for place, what, some in sorted(packs, key=lambda pack: pack[:2]):
            if what:
                items = [packed_item(event, position, 0, 0) for event, position in some]
                one.happened(pack_events(items), None)
            else:
                one.expected_several(place, orjson.dumps([["t", "u", "v"], some]))
        one.finish()
        counts = results.totals.counts
        missing = 38 - (len(steps) - 2)
        assert counts[f"cases {Rule.UNDELIVERED}"] == 38
        assert counts[f"wrong {Rule.UNDELIVERED}"] == missing
        assert sum(count for name, count in counts.items() if "wrong" in name) == missing


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
