"""Screens give reasons in sentences, and colours on a terminal only."""

import asyncio
import html
import io
import re
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from harness.logs import LogBuilder

from actors.inspection.status_metrics import DROPPED
from actors.node.read_pause import ReadPause
from cli.commands import log_events, why
from cli.commands.session_list import session_columns
from cli.commands.status import status_lines
from cli.logs.broker_client import LiveBroker
from cli.logs.log_brokers import LogBrokers
from cli.top.columns import ACTORS
from cli.web.pages.render import environment
from eventstore.display import clock
from eventstore.format.event_parsing import Event
from eventstore.format.events import (
    Acked,
    Delivered,
    MessageDropped,
    MessagePublished,
    Queued,
    Redelivered,
    SessionClosed,
    SessionOpened,
    SubscriptionDenied,
)
from eventstore.format.node_events import BrokerStarted
from eventstore.format.positions import position
from eventstore.format.records import decode_record
from eventstore.reasons import CLOSE_REASONS, close_text, close_words, drop_text, pause_text
from projections.past.event_reader import EventEntry
from projections.past.log_stories import LogStory
from projections.past.merged_events import LogEntry
from projections.past.story_builder import StoryBuilder
from projections.past.topic_lookup import MessageTopics
from projections.views.session_text import connection_lines, history_lines

ESCAPE = re.compile(r"\x1b\[(\d+)m(.*?)\x1b\[0m")


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


# --------------------------------------------------------------------------------- sentences


def status(dropped: dict[str, int]) -> dict[str, Any]:
    return {
        "time_ms": 5000, "started_ms": 0, "ready": True, "node": "n", "trouble": [],
        "software": "1", "pid": 7, "subscriptions": 0, "dropped": dropped,
        "connections": {"open": 1, "limit": 9, "paused": 0},
        "sessions": {"total": 1, "connected": 1},
        "retained": {"count": 0, "bytes": 0},
        "messages": {"in": [0, 0, 0], "out": [0, 0, 0]},
        "census": {"in_flight": 0, "releasing": 0, "queued": 0, "queued_bytes": 0},
        "log": {"first": 1, "durable": 2}, "process": {"rss": 1, "cpu_s": 1},
    }  # fmt: skip


BROKERS = LogBrokers([LiveBroker("n", "here", client=None)])  # type: ignore[arg-type]


def test_a_status_has_the_reasons_of_drops() -> None:
    found = status({"slow_reader": 0, "queue_messages": 1, "queue_bytes": 2000, "later": 1})
    lines = "\n".join(status_lines([found], BROKERS)).splitlines()
    at = lines.index("  dropped        2,002 messages")
    assert lines[at + 1 : at + 5] == [
        "                 2,000: the queue had as many bytes as max_queued_bytes allows",
        "                 1: the queue had as many messages as max_queued_messages allows",
        "                 1: later",
        "  log            records 1 to 2, size not known yet",
    ]
    assert "  dropped        0 messages" in status_lines([status({})], BROKERS)


def test_every_counted_reason_is_a_sentence() -> None:
    for reason in DROPPED:
        assert drop_text(reason) != reason


def test_every_pause_is_a_sentence() -> None:
    for reason in ReadPause.names(-1):
        assert pause_text(reason) != reason


def test_a_session_has_the_reasons_of_its_end_and_drops() -> None:
    found = {
        "counted_since_ms": 1000, "connects": 2, "last_close": "slow_reader",
        "last_close_ms": 4000, "dropped": 3,
        "dropped_by": {"not_permitted": 1, "queue_messages": 2}, "dropped_ms": 3000,
    }  # fmt: skip
    assert list(history_lines(found, 5000)) == [
        (
            f"  since {clock(1000)}: 2 connects, last end 1 s ago: the client read none of its "
            "pending output for slow_reader_time"
        ),
        "  dropped: 3 messages, the last 2 s ago",
        "    2: the queue had as many messages as max_queued_messages allows",
        "    1: the permissions do not let the client publish or read this topic (permissions)",
    ]


def test_all_lists_say_in_the_same_words_why_a_connection_ended() -> None:
    (in_list,) = [column for column in session_columns() if column.title == "LAST END"]
    (in_top,) = [column for column in ACTORS if column.title == "LAST END"]
    page = environment().from_string("{{ reason | close_words }}: {{ reason | close_reason }}")
    assert in_list.cell({"last_close": None}) is None
    assert in_top.show({"last_close": None}) == "-"
    for reason in [*CLOSE_REASONS, "later"]:
        words = close_words(reason)
        row = {"last_close": reason}
        assert in_list.cell(row) == in_top.show(row) == words
        assert html.unescape(page.render(reason=reason)) == f"{words}: {close_text(reason)}"
        assert "_" not in words
        assert len(words) <= in_top.width
    assert len({close_words(reason) for reason in CLOSE_REASONS}) == len(CLOSE_REASONS)


def test_a_connection_has_the_reasons_of_its_pause() -> None:
    found = {
        "level": 5, "address": "a", "id": "c", "connected_ms": 0, "keep_alive": 0, "unsent": 0,
        "gated": 0, "paused": ["log", "slow_reader"],
        **{f"{what}_{way}": 0 for what in ("messages", "bytes") for way in ("in", "out")},
    }  # fmt: skip
    assert list(connection_lines(found, None, 5000))[-1] == (
        "  reading paused: the disk does not keep up, it publishes to a client that does not read "
        "fast enough"
    )


# ----------------------------------------------------------------------------------- colours


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Callable[..., io.StringIO]:
    """Replace stdout; ``plain`` is none that shows colours."""

    def made(plain: str = "") -> io.StringIO:
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.delenv("NO_COLOR", raising=False)
        if plain == "NO_COLOR":
            monkeypatch.setenv("NO_COLOR", "1")
        out = io.StringIO() if plain == "pipe" else Screen()
        monkeypatch.setattr(sys, "stdout", out)
        return out

    return made


def logged(*events: Event) -> None:
    source: Any = SimpleNamespace(first=1)
    printer = log_events._LogPrinter({"": MessageTopics(source)}, as_json=False, payload=False)
    for number, event in enumerate(events, 1):
        entry = EventEntry(position(number, 0), 1000, event, memoryview(b""), False)
        asyncio.run(printer.print(LogEntry("", entry)))


LOGGED = (
    (MessageDropped("c", "slow_reader", 1), "31"),
    (SubscriptionDenied("c", ["a"], [0x87]), "31"),
    (SessionOpened("c", False, False, 4), "32"),
    (SessionClosed("c", "keep_alive"), "33"),
    (Redelivered("c", [1], "resumed"), "33"),
    (BrokerStarted("1", crashed=True), "31"),
    (BrokerStarted("1"), "1"),
    (SessionClosed("c", "disconnect"), None),
    (Acked("c", [1]), None),
)


def test_events_have_colours(screen: Callable[..., io.StringIO]) -> None:
    out = screen()
    logged(*(event for event, _ in LOGGED))
    for line, (event, code) in zip(out.getvalue().splitlines(), LOGGED, strict=True):
        first, *rest = ESCAPE.findall(line)
        assert first[0] == "2", "position and time are dim"
        assert [one for one, _ in rest] == ([] if code is None else [code]), event


@pytest.mark.parametrize("plain", ["pipe", "NO_COLOR"])
def test_events_without_colours(screen: Callable[..., io.StringIO], plain: str) -> None:
    out = screen(plain)
    logged(*(event for event, _ in LOGGED))
    assert out.getvalue()
    assert "\x1b" not in out.getvalue()


def told() -> None:
    ref = position(1, 0)
    log = LogBuilder("n")
    log.record(MessagePublished("p", 1, False, ["t"], [], [1], 2, 0, 1), payloads=[b"on"])
    log.record(
        Queued("waits", "t", 1, [ref], 2),
        Delivered("done", "t", 1, [1], [ref]),
        Acked("done", [1]),
        MessageDropped("lost", "queue_bytes", 1, [ref], "t"),
    )
    builder = StoryBuilder([ref])
    for sequence, data in enumerate(log.records, 1):
        builder.take(decode_record(sequence, data))
    way = why._Way(None, ())
    why._write([LogStory("", builder.stories[ref])], [way], None, None, as_json=False)


def test_the_history_of_a_message_has_colours(screen: Callable[..., io.StringIO]) -> None:
    out = screen()
    told()
    text = out.getvalue()
    assert text.startswith("\x1b[1mmessage 1.0 on t, QoS 1, 2 B\x1b[0m\n")
    painted = {said: code for code, said in ESCAPE.findall(text)}
    assert painted["still queued"] == "33"
    assert painted["acknowledged"] == "32"
    assert painted["dropped"] == "31"
    assert "for lost, subscription t: \x1b[31mdropped: the queue had" in text


@pytest.mark.parametrize("plain", ["pipe", "NO_COLOR"])
def test_the_history_of_a_message_without_colours(
    screen: Callable[..., io.StringIO], plain: str
) -> None:
    out = screen(plain)
    told()
    assert out.getvalue().startswith("message 1.0 on t, QoS 1, 2 B\n")
    assert "\x1b" not in out.getvalue()
