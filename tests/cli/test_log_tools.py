"""The parts of the log tools that need no log: text, moments, and the check of a log."""

from __future__ import annotations

import asyncio
import json
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from typing import Any

import pytest
from harness.client_stories import ClientStories

from cli.commands.replay import summary_lines, totals
from cli.commands.verify_log import verification_summary
from cli.common import text
from cli.logs.point_resolution import parse_point
from cli.logs.topic_flags import check_filter
from eventstore.errors import CorruptLog, CutMeanwhile, UnknownLogFormat, UsageError
from eventstore.format.event_parsing import Event
from eventstore.format.events import (
    Acked,
    Delivered,
    MessageDropped,
    MessagePublished,
    Queued,
    SessionClosed,
    SessionOpened,
    Subscribed,
    WillArmed,
)
from eventstore.format.node_events import (
    CheckpointBegun,
    CheckpointCompleted,
    LogArchived,
    LogCut,
    MessagesCarried,
    RetainedSnapshot,
    SessionSnapshot,
    WebAccessed,
)
from eventstore.format.positions import MAX_INDEX, position
from eventstore.format.records import GENESIS, Record, decode_record, encode_record, link_of
from eventstore.log.log_start import RecordedCut
from eventstore.reading.log_points import LogPoint
from eventstore.reading.log_source import LogSource
from projections.audit.log_verifier import LogVerifier
from projections.log_proof import statement
from projections.past.event_object import event_object
from projections.past.event_text import words
from projections.past.joined_state import JoinedState, LogState
from projections.past.replay import AsOf
from projections.past.story_text import story_lines
from projections.past.topic_lookup import MessageTopics, topic_matcher
from projections.state.node_state import NodeState
from projections.state.snapshot import encode_session
from protocol.mqtt.topics import TopicError

HOSTILE = "a\x1b[2J\x07\n\r\x9b1m\x7f\u202e\u2028\\z"


# ------------------------------------------------------------------------------------ text


def test_names_cannot_break_out() -> None:
    shown = text.escaped(HOSTILE)
    assert shown == "a\\u001b[2J\\u0007\\n\\r\\u009b1m\\u007f\\u202e\\u2028\\\\z"
    assert text.name("plain/t\u00f6pic") == "plain/t\u00f6pic"
    assert text.name("") == '""'
    assert text.name('a "b') == '"a \\"b"'
    assert text.name("x" * 200, 5) == "xxxxx...(195 more)"
    line = text.json_line({HOSTILE: HOSTILE})
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line) == {HOSTILE: HOSTILE}


@pytest.mark.parametrize(
    ("payload", "shown"),
    [
        (b"", '""'),
        (b'a "\xc3\xa9"', '"a \\"\u00e9\\""'),
        (b"\x00\xff\x1b", '"\\u0000\\xff\\u001b"'),
        (b"abcdef", '"abcde"...(1 more bytes)'),
        ("\u00e9".encode() * 6, '"\u00e9\u00e9\u00e9\u00e9\u00e9"...(2 more bytes)'),
    ],
)
def test_payloads_are_quoted_and_bounded(payload: bytes, shown: str) -> None:
    assert text.payload_text(payload, 5) == shown


def test_numbers_for_people() -> None:
    assert [text.size(count) for count in (0, 1023, 1024, 1536 * 1024)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.5 MiB",
    ]
    spans = [-5, 999, 61_000, 3_600_000, 90_061_000]
    assert [text.duration(span) for span in spans] == [
        "0 ms",
        "999 ms",
        "1 min 1 s",
        "1 h",
        "1 d 1 h",
    ]
    assert text.packet_ids_text([7, [1, 3, 1], [9, 3, 2], 4]) == "7, 1-3, 9-13 by 2 and 1 more"
    assert text.positions_text([position(5, 0), [position(6, 2), 3, 1]]) == "5.0, 6.2-6.4"


# --------------------------------------------------------------------------------- moments


def test_positions_are_moments() -> None:
    assert parse_point("12").position == position(12, MAX_INDEX)
    assert parse_point(" 12.3 ").position == position(12, 3)


def test_a_long_number_is_no_moment() -> None:
    for digits in (14, 20, 300):
        with pytest.raises(UsageError):
            parse_point("1" * digits)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("2026-11-20 09:30Z", 1795167000000),
        ("2026-11-20T10:30:00.250+01:00", 1795167000250),
        ("1970-01-01 00:00:00.001Z", 1),
    ],
)
def test_times_are_moments(given: str, expected: int) -> None:
    assert parse_point(given).time_ms == expected


def test_times_without_a_zone_are_local() -> None:
    local = datetime(2026, 11, 20, 9, 30).astimezone()
    assert parse_point("2026-11-20 09:30").time_ms == round(local.timestamp() * 1000)
    assert parse_point(text.clock(1795167000123)).time_ms == 1795167000123
    today = datetime.now().astimezone().replace(hour=9, minute=5, second=0, microsecond=0)
    assert parse_point("9:05").time_ms == round(today.timestamp() * 1000)


def test_times_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    assert parse_point("10m ago").time_ms == 400_000
    assert parse_point("1.5s ago").time_ms == 998_500
    assert parse_point("now").time_ms == 1_000_000


@pytest.mark.parametrize(
    "given",
    ["", "-1", "1.x", "1.9999999", "x ago", "99:00", "2026-13-01", "12.3.4", "1e3", "\x1b[2J"],
)
def test_invalid_points_in_time(given: str) -> None:
    with pytest.raises(UsageError, match="not a point in time") as caught:
        parse_point(given)
    assert str(caught.value).isprintable()


def test_topic_matcher() -> None:
    matches = topic_matcher("a/+/c")
    assert [matches(topic) for topic in ("a/b/c", "a/b", "a/b/c", "x/b/c")] == [
        True,
        False,
        True,
        False,
    ]
    with pytest.raises(UsageError, match=r"MQTT-4\.7\.1-2"):
        check_filter("a#")
    with pytest.raises(TopicError, match=r"MQTT-4\.7\.1-2"):
        topic_matcher("a#")


# ------------------------------------------------------------------------------------- why


def test_a_retained_message_that_came_with_a_subscription() -> None:
    log = Log()
    log.add(published(pids=[1], count=1, retain=True), payload=b"ab")
    log.add(
        SessionOpened("c\x1b", resumed=False, clean=False, level=4),
        Subscribed("c\x1b", [("t", 1)]),
        Delivered("c\x1b", "t", 1, [5], [position(1, 0)], retain=True),
    )
    explainer = ClientStories("c\x1b", position(1, 0))
    for sequence, data in enumerate(log.records, 1):
        explainer.take(decode_record(sequence, data))
    (story,) = explainer.stories.values()
    lines = list(story_lines(story, "c\x1b", 0))
    assert all(line.isprintable() for line in lines)
    who, fate = "c\\u001b", "in flight: sent, not acknowledged"
    assert lines[3:] == [
        f"  {who} had no session at that time",
        f"  for {who}, subscription t at QoS 1: as a retained message, {fate}",
        f"    {text.clock(2000)}      2.2  sent as packet 5",
    ]


# ---------------------------------------------------------------------------------- verify


class Log:
    """Encodes records one after the other."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.link = GENESIS

    def add(self, *events: Any, node: str = "n", payload: bytes = b"", **how: Any) -> Log:
        number = len(self.records) + 1
        data = encode_record(
            previous=self.link,
            node=node,
            time_ms=1000 * number,
            events=events or (Acked("c", [[1, 3, 1]]),),
            payloads=[payload],
            **how,
        )
        self.records.append(data)
        self.link = link_of(data)
        return self


def problems(
    stored: dict[int, bytes],
    last: int | None = None,
    noted: tuple[int, bytes] | None = None,
    cut: LogCut | None = None,
) -> tuple[list[tuple[int, str]], LogVerifier]:
    found: list[tuple[int, str]] = []
    recorded = None if cut is None else RecordedCut(position(max(stored), 0), 9000, cut)
    begin = min(stored, default=1) if cut is not None else 1
    verifier = LogVerifier(
        lambda sequence, what: found.append((sequence, what)), noted, begin, recorded
    )
    for sequence, data in stored.items():
        verifier.take(sequence, data)
    verifier.end(max(stored, default=0) if last is None else last)
    return found, verifier


def numbered(log: Log) -> dict[int, bytes]:
    return dict(enumerate(log.records, 1))


def test_an_intact_log_has_no_problems() -> None:
    log = Log().add().add(part=0, last=False).add(part=1).add(part=0, last=False).add()
    found, verifier = problems(numbered(log), noted=(3, link_of(log.records[2])))
    assert found == []
    assert (verifier.records, verifier.entries, verifier.void) == (5, 15, 1)
    assert (verifier.first_ms, verifier.last_ms) == (1000, 5000)


def test_every_problem_is_reported_and_reading_continues() -> None:
    log = Log().add().add().add().add().add().add()
    stored = numbered(log)
    stored[2] = stored[2][:-1] + bytes([stored[2][-1] ^ 1])
    del stored[4]
    found, verifier = problems(stored, last=8)
    assert found == [
        (2, "has a wrong checksum"),
        (4, "is missing or cannot be read"),
        (7, "and all up to 8 (2 records) are missing"),
    ]
    assert verifier.records == 4
    assert verifier.proven == [(1000, 1000), (3000, 3000), (5000, 6000)]
    assert [(one.reason, one.until) for one in verifier.doubts] == [
        ("damaged", 2),
        ("damaged", 4),
        ("damaged", 7),
    ]
    assert "record 4 is damaged or missing" in statement(verifier.doubts[1])
    summary = verification_summary(verifier, len(found), "here")
    assert summary.startswith("damaged: 3 problems in the log of here; read 4 records, 12 entries;")
    assert "; intact are the parts from " in summary


def test_an_empty_log_is_not_called_intact() -> None:
    found, verifier = problems({})
    assert verification_summary(verifier, len(found), "here") == (
        "the log is empty: there is nothing to verify"
    )


def test_a_broken_chain_is_reported_once() -> None:
    log = Log().add().add().add()
    log.link = bytes([7]) * 32
    log.add().add()
    assert problems(numbered(log))[0] == [(4, "does not continue record 3")]
    swapped = numbered(Log().add().add())
    assert problems({1: swapped[2], 2: swapped[1]})[0] == [
        (1, "does not continue record 0"),
        (2, "does not continue record 1"),
    ]


def test_the_noted_record_must_be_there() -> None:
    log = Log().add().add()
    found, _ = problems(numbered(log), noted=(2, bytes(32)))
    assert found == [(2, "is not the one that was acknowledged")]
    found, _ = problems(numbered(log), noted=(3, bytes(32)))
    assert found == [(3, "is missing or cannot be read")]


def test_parts_nodes_and_events() -> None:
    log = (
        Log()
        .add()
        .add(part=1)
        .add(node="other")
        .add({"e": "Acked", "v": 1, "session": 7}, node="other")
    )
    found, _ = problems(numbered(log))
    assert [sequence for sequence, _ in found] == [2, 3, 4]
    assert found[0][1] == "is part 1 of a turn, part 0 is missing"
    assert found[1][1] == "belongs to another node, other"
    assert found[2][1].startswith("cannot be read: entry 0: event Acked")


def published(**fields: Any) -> MessagePublished:
    return MessagePublished(
        **{
            "session": "c",
            "qos": 1,
            "retain": False,
            "topics": ["t"],
            "which": [],
            "pids": [1, 2],
            "sizes": 2,
            "at": 0,
            "count": 2,
            **fields,
        }
    )


@pytest.mark.parametrize(
    ("event", "what"),
    [
        (published(), None),
        (published(sizes=3), "its payloads are not in the record"),
        (published(sizes=[1, 2, 1]), "its columns differ in length"),
        (published(pids=[1]), "its columns differ in length"),
        (published(which=[0, 1]), "a topic is missing"),
        (WillArmed("c", "t", 0, False, 5, 0), "its payload is not in the record"),
        (Delivered("c", "t", 1, [1], [1, 2]), "its columns differ in length"),
        (MessageDropped("c", "lost", 1, [1, 2]), "its columns differ in length"),
        (Queued("c", "t", 1, [], 0), "it names no message"),
    ],
)
def test_events_whose_parts_do_not_fit(event: Event, what: str | None) -> None:
    found, _ = problems(numbered(Log().add(event, payload=b"abcd")))
    kind = type(event).__name__
    assert found == ([] if what is None else [(1, f"entry 0: event {kind}: {what}")])


# ----------------------------------------------------------------- checkpoints and cuts

MESSAGE = position(2, 0)
RETAINED = position(2, 1)
CHECKPOINT = position(3, 0)


def snapshot_of(log: Log) -> dict[str, Any]:
    """The state of session c after the records of a log."""
    state = NodeState()
    for sequence, data in enumerate(log.records, 1):
        state.apply_record(decode_record(sequence, data))
    (part,) = encode_session(state.sessions["c"])
    return part


def prologue() -> Log:
    """Session c is away with a message in its queue, another is retained on topic r."""
    opened = SessionOpened("c", resumed=False, clean=False, level=4)
    log = Log().add(opened, Subscribed("c", [("t", 1)]), SessionClosed("c", "closed"))
    return log.add(
        published(session="p", pids=[1], count=1),
        published(session="p", topics=["r"], pids=[2], count=1, retain=True, at=2),
        Queued("c", "t", 1, [MESSAGE], 2),
        payload=b"abcd",
    )


def checkpointed(change: dict[str, Any] | None = None) -> Log:
    """That log with a checkpoint (record 3) and its cut (record 5); events may be replaced."""
    log = prologue()
    said: dict[str, Any] = {
        "begun": CheckpointBegun(1),
        "session": SessionSnapshot("c", snapshot_of(log)),
        "retained": RetainedSnapshot(["r"], [1], [RETAINED], 2, 0, 1),
        "completed": CheckpointCompleted(1, CHECKPOINT, 1, 1),
        "carried": MessagesCarried([MESSAGE], ["t"], [], 2, 0, 1),
        "cut": LogCut(3, log.link.hex(), 3000, "keep"),
        **(change or {}),
    }
    first = [said[one] for one in ("begun", "session", "retained", "completed") if said[one]]
    log.add(*first, payload=b"cd")
    log.add(*([said["carried"]] if said["carried"] else []), payload=b"ab")
    return log.add(said["cut"])


def cut_off(log: Log) -> dict[int, bytes]:
    return {sequence: data for sequence, data in numbered(log).items() if sequence >= 3}


def test_a_log_with_a_checkpoint_is_intact_before_and_after_the_cut() -> None:
    log = checkpointed()
    assert problems(numbered(log))[0] == []
    found, verifier = problems(cut_off(log), cut=LogCut(3, link_of(log.records[1]).hex(), 0, "x"))
    assert found == []
    assert verifier.records == 3


def other_session(**fields: Any) -> dict[str, Any]:
    return {"session": SessionSnapshot("c", {**snapshot_of(prologue()), **fields})}


@pytest.mark.parametrize(
    ("change", "where", "what"),
    [
        *(
            (
                other_session(**{name: value}),
                3,
                f"entry 1: repeats session c with a different state: {field}",
            )
            for name, value, field in (
                ("generation", 7, "connections"),
                ("last_pid", 7, "last packet identifier"),
                ("queues", [], "queued"),
                ("bridge", True, "bridge"),
                ("receive_maximum", 7, "receive maximum"),
                ("packet_maximum", 7, "maximum packet size"),
            )
        ),
        (other_session(queues=[[9, 1, []]]), 3, "entry 1: contradicts the state before: Index"),
        (
            {"session": SessionSnapshot("x\x1b", {"generation": 1})},
            3,
            "entry 1: repeats session x\\u001b, which does not exist",
        ),
        ({"session": None}, 3, "entry 2: records that checkpoint 1 has 1 sessions and 1 retained"),
        ({"retained": None}, 3, "entry 2: records that checkpoint 1 has 1 sessions and 1 retained"),
        (
            {"session": None, "completed": CheckpointCompleted(1, CHECKPOINT, 0, 1)},
            3,
            "entry 2: the checkpoint does not repeat sessions c",
        ),
        (
            {"retained": None, "completed": CheckpointCompleted(1, CHECKPOINT, 1, 0)},
            3,
            "entry 2: the checkpoint does not repeat the retained messages of r",
        ),
        (
            {"retained": RetainedSnapshot(["r"], [0], [RETAINED], 2, 0, 1)},
            3,
            "entry 2: repeats a message on r from 2.1 that is not the retained one",
        ),
        (
            {"retained": RetainedSnapshot(["r"], [1], [RETAINED], 1, 0, 1)},
            3,
            "entry 2: repeats a message on r from 2.1 that is not the retained one",
        ),
        (
            {"retained": RetainedSnapshot(["r"], [1], [RETAINED], 2, 0, 1, "c")},
            3,
            "entry 2: repeats a message on r from 2.1 that is not the retained one",
        ),
        (
            {"carried": None},
            5,
            "entry 0: cuts off a message that is not repeated: session c needs message 2",
        ),
        ({"cut": LogCut(2, "", 0, "keep")}, 5, "entry 0: cuts the log before record 2, where no"),
        ({"cut": LogCut(3, "00", 3000, "x")}, 5, "entry 0: cuts the log before record 3, but desc"),
    ],
)
def test_events_that_contradict_the_log(change: dict[str, Any], where: int, what: str) -> None:
    found, _ = problems(numbered(checkpointed(change)))
    assert found
    assert found[0][0] == where
    assert found[0][1].startswith(what)
    assert all(one.isprintable() for _, one in found)


def test_a_snapshot_may_be_written_in_another_way() -> None:
    runs = other_session(queues=[[0, 2, [[MESSAGE << 3 | 1, 1, 1]]]])
    assert runs != other_session()
    assert problems(numbered(checkpointed(runs)))[0] == []


def test_the_beginning_of_a_log_that_was_cut() -> None:
    log = checkpointed()
    link = link_of(log.records[1]).hex()
    found, _ = problems(cut_off(log), cut=LogCut(3, "00" * 32, 0, "keep"))
    assert found == [(3, "does not continue the record that was cut off before it")]
    stored = cut_off(log)
    del stored[3]
    found, _ = problems(stored, cut=LogCut(3, link, 0, "keep"))
    begins = "the log begins with record 4"
    assert found == [
        (3, f"is gone: {begins}, and its last recorded cut was before record 3"),
        (4, "begins the log, and no complete checkpoint follows it"),
    ]


def test_a_log_that_is_cut_while_it_is_checked() -> None:
    log = checkpointed()
    found: list[tuple[int, str]] = []
    verifier = LogVerifier(lambda sequence, what: found.append((sequence, what)), None)
    verifier.take(1, log.records[0])
    cut = LogCut(3, link_of(log.records[1]).hex(), 0, "keep")
    verifier.begin_again(3, RecordedCut(position(5, 0), 0, cut))
    for sequence in (3, 4, 5):
        verifier.take(sequence, log.records[sequence - 1])
    verifier.end(5)
    assert found == []


def test_a_format_that_is_not_known_is_damage_only_before_a_known_one() -> None:
    log = checkpointed()
    log.records[1] = b"FMQ\x03" + log.records[1][4:]
    found: list[tuple[int, str]] = []
    verifier = LogVerifier(lambda sequence, what: found.append((sequence, what)), None)
    for sequence in (1, 2):
        verifier.take(sequence, log.records[sequence - 1])
    assert found == []
    with pytest.raises(UnknownLogFormat, match="record 2 of the log has format 3"):
        verifier.end(2)
    verifier.take(3, log.records[2])
    assert (found[0][0], "has format 3" in found[0][1]) == (2, True)
    verifier.end(3)


@pytest.mark.parametrize(("first", "live"), [(3, True), (1, True), (3, False)])
def test_a_log_that_is_cut_while_it_is_read(
    monkeypatch: pytest.MonkeyPatch, first: int, live: bool
) -> None:
    """Record 2 is removed before it is read: that is damage only if the log was not cut."""
    log = checkpointed()

    async def read(*_: object, **_options: object) -> AsyncIterator[Record]:
        for sequence in (1, 3, 4, 5):
            yield decode_record(sequence, log.records[sequence - 1])

    async def bounds(*_: object) -> tuple[int, int]:
        return first, 5

    monkeypatch.setattr("eventstore.reading.log_source.read_records", read)
    monkeypatch.setattr("eventstore.reading.log_source.read_bounds", bounds)
    client: Any = None
    source = LogSource(client, "s", "here", live, 1, 5, None)

    async def read_all() -> list[int]:
        return [record.sequence async for record in source.records(1, 5)]

    cut = live and first > 2
    with pytest.raises(CutMeanwhile if cut else CorruptLog) as caught:
        asyncio.run(read_all())
    assert caught.value.exit_code == (75 if cut else 65)
    assert ("it begins with record 3 now: ask again" in str(caught.value)) == cut


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (CheckpointBegun(3), "checkpoint 3 begun"),
        (
            SessionSnapshot("c", {"generation": 1, "subscriptions": [["t", 1]]}),
            "repeated: session away, 1 subscription",
        ),
        (
            SessionSnapshot("c", {"connected": True}, 1, last=False),
            "repeated: session connected, 0 subscriptions, part 2 of its state",
        ),
        (
            RetainedSnapshot(["a\x1b", "b"], [0, 1], [[RETAINED, 2, 1]], [1, 2], 0, 2),
            "repeated: retained: a\\u001b, b (2 messages from 2.1-2.2), 3 B",
        ),
        (
            RetainedSnapshot(["a"], [2], [RETAINED], 1, 0, 1, "c"),
            "repeated: waiting for its PUBREL to be retained: a (from 2.1), 1 B",
        ),
        (
            CheckpointCompleted(3, CHECKPOINT, 1, 2),
            "checkpoint 3 (from 3.0) complete: 1 session, 2 retained messages",
        ),
        (
            MessagesCarried([MESSAGE], ["t\x9b"], [], 2, 0, 1),
            "repeated: still to be delivered: t\\u009b (from 2.0), 2 B",
        ),
        (
            LogCut(3, "00", 3000, "keep\x1b"),
            f"log cut before record 3 of {text.clock(3000)}: keep\\u001b",
        ),
        (
            LogArchived(3, "00", "ann\x1b@desk", "/archive/of a node"),
            'log archived up to record 3 in "/archive/of a node", reported by ann\\u001b@desk',
        ),
        (
            WebAccessed("login", "127.0.0.1", "ann", "view-all", first_ms=3000),
            "web page: login from 127.0.0.1, token ann, role view-all",
        ),
        (
            WebAccessed("refused", "::1\x1b", reason="wrong_token", count=12, first_ms=3000),
            "web page: 12 logins refused (wrong token) from ::1\\u001b, the first at "
            + text.clock(3000),
        ),
        (
            WebAccessed("token_added", "", "ann", "view", expires="2026-12-31T23:59:59Z"),
            "web page: token ann added, role view, expires at 2026-12-31T23:59:59Z",
        ),
        (
            WebAccessed("token_removed", "", "a b\x1b", "operate", expires="never"),
            'web page: token "a b\\u001b" removed, role operate, expires never',
        ),
        (
            WebAccessed("denied", "", "a b\x1b", "view", "role"),
            'web page: change denied (role) from many addresses, token "a b\\u001b", role view',
        ),
    ],
)
def test_checkpoints_and_cuts_as_text(event: Event, said: str) -> None:
    book = MessageTopics(source=None)  # type: ignore[arg-type] # nothing is read
    assert words(event, book) == said
    as_json = text.json_line(event_object(event, position(4, 0), 1000, book, memoryview(b"abcd")))
    assert as_json.isprintable()
    assert json.loads(as_json)["type"] == type(event).__name__


# ---------------------------------------------------------------------------------- replay


def test_sums_of_sessions_that_are_frozen() -> None:
    state = NodeState()
    for sequence, data in enumerate(prologue().records, 1):
        state.apply_record(decode_record(sequence, data))
    joined = JoinedState([LogState("", AsOf(LogPoint(2), 1), state)])
    before = totals(joined)
    assert (before.sessions, before.subscriptions, before.queued) == (1, 1, 1)
    state.sessions.freeze("c", position(3, 0))
    assert totals(joined) == before
    assert not state.sessions.live
    assert any(line.split()[:2] == ["c", "offline"] for line in summary_lines(joined, "record 2"))


class _NeverWalked(OrderedDict[int, Any]):
    """What a book holds, of which each load may look up what it wants and no more."""

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("a load walks everything that is held")

    def keys(self) -> Any:
        return iter(self)


async def test_loading_costs_do_not_depend_on_the_number_of_stored_messages() -> None:
    """``log --topic`` loads topics for each event: it was quadratic in the records of the log."""
    asked: list[list[int]] = []

    class Source:
        first = 1

        async def some(self, sequences: list[int]) -> list[Any]:
            asked.append(list(sequences))
            return []

    book = MessageTopics(Source())  # type: ignore[arg-type] # only what is asked of it
    book._records = _NeverWalked({number: [] for number in range(1, 1000)})
    await book.load([position(number, 0) for number in (5, 1001, 999, 1002)])
    assert asked == [[1001, 1002]]
