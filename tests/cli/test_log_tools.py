"""The parts of the log tools that need no log: text, moments, and the check of a log."""

from __future__ import annotations

import json
import time
from datetime import datetime
from typing import Any

import pytest

from cli import text
from cli.moments import parse_moment
from cli.sourceflags import UsageError
from cli.topics import topic_matcher
from cli.verify import Verifier
from cli.why import story_lines
from eventstore.events import (
    Acked,
    Delivered,
    Event,
    MessageDropped,
    MessagePublished,
    Queued,
    SessionOpened,
    Subscribed,
    WillArmed,
)
from eventstore.positions import MAX_INDEX, position
from eventstore.records import GENESIS, decode_record, encode_record, link_of
from projections.explain import Explainer

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
    assert text.numbers([7, [1, 3, 1], [9, 3, 2], 4]) == "7, 1-3, 9-13 by 2 and 1 more"
    assert text.positions([position(5, 0), [position(6, 2), 3, 1]]) == "5.0, 6.2-6.4"


# --------------------------------------------------------------------------------- moments


def test_positions_are_moments() -> None:
    assert parse_moment("12").position == position(12, MAX_INDEX)
    assert parse_moment(" 12.3 ").position == position(12, 3)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("2026-11-20 09:30Z", 1795167000000),
        ("2026-11-20T10:30:00.250+01:00", 1795167000250),
        ("1970-01-01 00:00:00.001Z", 1),
    ],
)
def test_times_are_moments(given: str, expected: int) -> None:
    assert parse_moment(given).time_ms == expected


def test_times_without_a_zone_are_local() -> None:
    local = datetime(2026, 11, 20, 9, 30).astimezone()
    assert parse_moment("2026-11-20 09:30").time_ms == round(local.timestamp() * 1000)
    assert parse_moment(text.clock(1795167000123)).time_ms == 1795167000123
    today = datetime.now().astimezone().replace(hour=9, minute=5, second=0, microsecond=0)
    assert parse_moment("9:05").time_ms == round(today.timestamp() * 1000)


def test_times_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    assert parse_moment("10m ago").time_ms == 400_000
    assert parse_moment("1.5s ago").time_ms == 998_500
    assert parse_moment("now").time_ms == 1_000_000


@pytest.mark.parametrize(
    "given",
    ["", "-1", "1.x", "1.9999999", "x ago", "99:00", "2026-13-01", "12.3.4", "1e3", "\x1b[2J"],
)
def test_what_is_no_moment(given: str) -> None:
    with pytest.raises(UsageError, match="not a moment") as caught:
        parse_moment(given)
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
    explainer = Explainer(ref=position(1, 0), client="c\x1b")
    for sequence, data in enumerate(log.records, 1):
        explainer.take(decode_record(sequence, data))
    (story,) = explainer.stories.values()
    lines = list(story_lines(story, "c\x1b"))
    assert all(line.isprintable() for line in lines)
    who, fate = "c\\u001b", "in flight: sent, no answer yet"
    assert lines[3:] == [
        f"  {who} had no session at that moment",
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
    stored: dict[int, bytes], last: int | None = None, noted: tuple[int, bytes] | None = None
) -> tuple[list[tuple[int, str]], Verifier]:
    found: list[tuple[int, str]] = []
    verifier = Verifier(lambda sequence, what: found.append((sequence, what)), noted)
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


def test_every_problem_is_told_and_reading_goes_on() -> None:
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


def test_a_broken_chain_is_told_once() -> None:
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
    log = Log().add().add(part=1).add(node="other").add({"e": "Later", "v": 9}, node="other")
    found, _ = problems(numbered(log))
    assert [sequence for sequence, _ in found] == [2, 3, 4]
    assert found[0][1] == "is part 1 of a turn, part 0 is missing"
    assert found[1][1] == "is of another node, other"
    assert found[2][1].startswith("cannot be read: entry 0: event 'Later' version 9")


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
