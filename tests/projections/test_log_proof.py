"""What is proven of a log, and the statements about the rest."""

from collections.abc import Sequence

import pytest

from eventstore.format.event_parsing import Event
from eventstore.format.events import Delivered, SessionExpired, SessionOpened, Subscribed
from eventstore.format.node_events import (
    BrokerStarted,
    CheckpointBegun,
    CheckpointCompleted,
    LogCut,
    LogEndUnproven,
    LogSalvaged,
    SessionSnapshot,
)
from eventstore.format.positions import position
from eventstore.format.records import decode_record, encode_record
from projections.log_proof import (
    Doubt,
    LogProof,
    proven_spans,
    spans_text,
    statement,
    unproven_end,
)
from projections.state.format import MARK, ProjectionMark, StoredEntry, mark_of
from projections.state.node_state import NodeState

ENDED = "the log ended at record 12, "
COPY = LogEndUnproven("copy", 12, 1000, 17)
SALVAGED = LogSalvaged(
    5, 8, "ab" * 32, 4, 900, 12, "/old", "root@h", "1.0", begins_ms=400, ends_ms=900
)

SALVAGED_BEFORE = LogSalvaged(3, 3, "cd" * 32, 1, 90, 40, "/old", "root@h", "1.0")
"""A later salvage, whose hole is before that of :data:`SALVAGED`."""


def folded(*events: tuple[Event, int, int]) -> LogProof:
    proof = LogProof()
    for event, sequence, time_ms in events:
        proof.take(event, sequence, time_ms)
    return proof


def apply(node: NodeState, sequence: int, events: Sequence[Event], time_ms: int = 100) -> None:
    """Fold a record with events."""
    data = encode_record(previous=bytes(32), node="n", time_ms=time_ms, events=events, payloads=[])
    node.apply_record(decode_record(sequence, data))


def plain(time_ms: int) -> str:
    return str(time_ms)


def test_a_log_without_such_events_is_proven_from_its_first_to_its_last_record() -> None:
    proof = folded((BrokerStarted("1"), 1, 100), (BrokerStarted("1"), 9, 800))
    assert proof.doubts == []
    assert proven_spans(100, 900, proof.doubts) == [(100, 900)]


def test_the_proven_parts_are_those_between_the_doubts() -> None:
    proof = folded((SALVAGED, 8, 400), (COPY, 13, 5000))
    spans = proven_spans(100, 6000, proof.doubts)
    assert spans == [(100, 400), (900, 1000), (5000, 6000)]
    assert spans_text(spans, plain) == "from 100 to 400, from 900 to 1000, from 5000 to 6000"
    assert spans_text([(9, 5)], plain) == "from 9 to 5 (the clock was set back)"
    assert spans_text([(1, 2)] * 9, plain).endswith("from 1 to 2, and 6 more parts")


def test_a_later_salvage_is_not_seen_by_the_starts_that_were_before_it() -> None:
    restored = LogEndUnproven("restored", 9, 950, salvaged=12)
    before = (SALVAGED_BEFORE, 3, 200)
    (first, *_) = folded(before, (SALVAGED, 8, 400), (restored, 10, 5000)).doubts
    assert (first.behind, first.seen_ms) == (40, 0)
    started = folded(
        (SALVAGED_BEFORE, 3, 200), (restored, 10, 5000), (BrokerStarted("1"), 41, 9000)
    )
    assert started.doubts[0].seen_ms == 9000


@pytest.mark.parametrize("knew", [False, True])
def test_a_salvage_is_not_continued_by_a_start_that_it_found_in_the_log(*, knew: bool) -> None:
    """Its log ended before the last record of the salvage that this start continued."""
    node, proof = NodeState(), LogProof()
    found = LogSalvaged(
        3, 3, "cd" * 32, 1, 90, 11, "/old", "root@h", "1.0", known=[5000] if knew else []
    )
    restored = LogEndUnproven("restored", 9, 950, salvaged=12)
    for sequence, event in ((3, found), (8, SALVAGED), (10, restored)):
        apply(node, sequence, [event], 5000)
        proof.take(event, sequence, 5000)
    for one in (proof, node.proof):
        assert [doubt.behind for doubt in one.doubts[:2]] == [11 if knew else 9, 9]
    assert (node.unsure, node.salvaged) == ((True, 11) if knew else (False, 9))


def test_a_checkpoint_behind_two_holes_is_the_state() -> None:
    node = NodeState()
    snapshot = SessionSnapshot(
        "c", {"generation": 2, "last_pid": 7, "subscriptions": [["#", 1]]}, 0, True
    )
    turns: list[list[Event]] = [
        [SessionOpened("c", resumed=False, clean=False, level=4), Subscribed("c", [("#", 1)])],
        [Delivered("c", "#", 1, [2], [position(1, 0)])],
        [SALVAGED_BEFORE],  # it gave up the PUBACK of packet 2
        [BrokerStarted("1")],
        [SALVAGED],
        [BrokerStarted("1")],
        [CheckpointBegun(1), snapshot, CheckpointCompleted(1, position(14, 0), 1, 0)],
    ]
    for sequence, events in zip((1, 2, 3, 4, 8, 13, 14), turns, strict=True):
        apply(node, sequence, events)
    state = node.sessions.peek("c")
    assert state is not None
    assert not state.inflight
    assert state.last_pid == 7
    assert not node.unsure


def opened(name: str) -> SessionOpened:
    return SessionOpened(name, resumed=False, clean=False, level=4)


def salvaged_node(*turns: list[Event], first: int = 13) -> NodeState:
    """The state of three sessions, a hole behind them, and further turns."""
    node = NodeState()
    begin: list[Event] = [opened("a"), opened("b"), opened("c")]
    for sequence, events in [(1, begin), (8, [SALVAGED]), *enumerate(turns, first)]:
        apply(node, sequence, events)
    return node


def test_a_state_that_is_continued_behind_a_hole_stays_uncertain() -> None:
    node = salvaged_node([BrokerStarted("1")], [opened("b")], [SessionExpired("c", "expired")])
    assert not node.unsure
    assert node.unsure_session("b") is None
    said = node.unsure_session("a")
    assert said == (
        "its subscriptions and messages are not certain: foldmq salvage gave up records 5 to 8 "
        "(4 records) of /old"
    )
    state = node.unsure_state() or ""
    assert state.endswith("of /old; affected: 1 session, a")
    assert state.startswith("sessions, subscriptions and retained messages may be missing")


def test_a_checkpoint_behind_a_hole_ends_the_uncertainty() -> None:
    parts = [SessionSnapshot(name, {"generation": 1}, 0, True) for name in "abc"]

    def checkpoint(record: int) -> list[Event]:
        completed = CheckpointCompleted(1, position(record, 0), 3, 0)
        return [CheckpointBegun(1), *parts, completed]

    node = salvaged_node(checkpoint(9), [BrokerStarted("1")], first=9)
    assert node.unsure_session("a") is None
    assert node.unsure_state() is None
    assert [doubt.settled for doubt in node.proof.doubts] == [True]
    # That of a broker that has continued the state repeats what may be wrong.
    node = salvaged_node([BrokerStarted("1")], checkpoint(14))
    assert node.unsure_session("a") is not None


@pytest.mark.parametrize(("names", "kept"), [(["a"], ["a"]), (["a" * 60_000] * 5, [""])])
def test_a_mark_has_the_uncertain_sessions(names: list[str], kept: list[str]) -> None:
    doubts = folded((SALVAGED, 8, 4)).doubts
    mark = ProjectionMark(6, "ab" * 32, 3, 1, doubts=doubts, doubtful=names)
    read = mark_of(StoredEntry(MARK, "", 0, 0, mark.body()))
    assert read.doubtful == kept
    node = NodeState()
    node.take_mark(read)
    assert node.unsure_session("a") is not None
    assert (node.unsure_session("b") is None) == (kept == ["a"])


def test_a_log_that_ends_before_the_last_record_of_its_salvage_is_continued() -> None:
    restored = LogEndUnproven("restored", 9, 950, salvaged=12)
    (salvage, end) = folded((SALVAGED, 8, 400), (restored, 10, 5000)).doubts
    assert (salvage.behind, salvage.seen_ms) == (9, 5000)
    assert end.seen_ms == 5000


def test_a_doubt_that_no_start_has_ended_reaches_to_the_present() -> None:
    end = unproven_end(COPY)
    assert proven_spans(100, 1000, [end]) == [(100, 1000)]
    assert statement(end, plain).startswith(
        "nothing can be said about the time since 1000: this is a copy of a data directory; "
    )


def test_records_given_up_at_the_end_are_in_doubt_until_the_next_start() -> None:
    lost = LogSalvaged(5, 8, "", 4, 900, 8, "/old", "root@h", "1.0", begins_ms=400)
    proof = folded((lost, 8, 400))
    assert proven_spans(100, 400, proof.doubts) == [(100, 400)]
    proof.take(BrokerStarted("1"), 9, 2000)
    assert proven_spans(100, 3000, proof.doubts) == [(100, 400), (2000, 3000)]
    proof.take(BrokerStarted("1"), 20, 4000)
    assert proof.doubts[0].to_ms == 2000


def test_a_salvage_is_seen_by_the_first_start_after_it() -> None:
    """Not by those of the damaged log, which are before and behind the lost records."""
    proof = folded(
        (SALVAGED, 8, 400), (BrokerStarted("1"), 10, 950), (BrokerStarted("1"), 13, 5000)
    )
    assert (proof.doubts[0].to_ms, proof.doubts[0].seen_ms) == (900, 5000)


def test_a_log_whose_beginning_was_given_up() -> None:
    lost = LogSalvaged(1, 8, "ab" * 32, 8, 900, 12, "/old", "root@h", "1.0", ends_ms=900)
    proof = folded((lost, 8, 900))
    assert proven_spans(900, 1000, proof.doubts) == [(900, 1000)]
    assert "about the beginning to 900:" in statement(proof.doubts[0], plain)


def test_a_cut_forgets_what_was_said_before_it() -> None:
    proof = folded((SALVAGED, 8, 400), (COPY, 13, 5000))
    proof.cut(13)
    assert [doubt.reason for doubt in proof.doubts] == ["copy"]
    proof.cut(14)
    assert not proof.doubts


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (
            COPY,
            (
                "nothing can be said about 1000 to 5000: the broker started on a copy of a data "
                f"directory; {ENDED}the original had noted record 17 as "
                "acknowledged: 5 records or more are missing"
            ),
        ),
        (
            LogEndUnproven("copy", 12, 1000, 12),
            (
                "nothing can be said about 1000 to 5000: the broker started on a copy of a data "
                f"directory; {ENDED}what was acknowledged after that is not known"
            ),
        ),
        (
            LogEndUnproven("no_watermark", 12, 1000),
            (
                "nothing can be said about 1000 to 5000: the broker started without a watermark "
                f"(log.mark); {ENDED}what was acknowledged after that is not known"
            ),
        ),
        (
            LogEndUnproven("restored", 12, 1000, source="/b\n"),
            (
                "nothing can be said about 1000 to 5000: the broker started on a data directory "
                f"that was restored from /b\\n; {ENDED}what was acknowledged after that "
                "is not known"
            ),
        ),
        (
            SALVAGED,
            (
                "nothing can be said about 400 to 900: foldmq salvage gave up records 5 to 8 "
                "(4 records) of /old"
            ),
        ),
    ],
)
def test_every_doubt_has_a_statement(event: Event, said: str) -> None:
    (doubt,) = folded((event, 13, 5000)).doubts
    assert statement(doubt, plain) == said


def test_the_state_of_a_node_knows_what_is_proven() -> None:
    node = NodeState()
    apply(node, 1, [COPY], 5000)
    assert node.proof.doubts == [Doubt(1, "copy", 12, 12, 1000, 5000, 5, seen_ms=5000)]
    node.apply(LogCut(2, "", 0, "keep"), position(2, 0), 6000)
    assert not node.proof.doubts
