"""Spans: what their fold keeps is bounded, and answers of a collector may be anything."""

import contextlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, cast

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from eventstore.format.events import (
    Acked,
    Completed,
    Delivered,
    MessagePublished,
    Queued,
    Received,
    Redelivered,
)
from eventstore.format.positions import position
from outbox.selection import Selection
from outbox.sink import Destination, OutboxMessage
from outbox.sinks.http import HttpOptions
from outbox.sinks.otlp import OtlpSink, TracedMessages
from outbox.sinks.spans import SpanFold, SpanOptions


def test_a_pubrel_that_is_sent_again_is_no_message_that_is() -> None:
    """Nor does its client refuse the message by a PUBCOMP that knows no packet identifier."""
    published = MessagePublished("p", 1, False, ["a"], [], [1], 1, 0, 1)
    events = [
        published,
        Delivered("c", "#", 2, [7], [position(1, 0)]),
        Received("c", [7]),
        Redelivered("c", [7], "ack_wait"),
        Completed("c", [7], reasons=[0x92]),
    ]

    def spans(options: SpanOptions) -> bytes:
        fold = SpanFold("n", options, lambda _topic: True, (0, position(1000, 0)))
        turn: Any = OneTurn(1, events)
        return b"".join(message.payload for message in fold.take([turn]))

    assert spans(SpanOptions(ratio=0.0, dropped=True, redelivered=True)) == b""
    exported = spans(SpanOptions(ratio=1.0))
    assert b"pubrel_repeated" in exported
    assert b"redelivered" not in exported
    assert b"0x92" not in exported


@dataclass
class OneTurn:
    """A record that is a whole turn, with events of no content."""

    sequence: int
    parts: list[Any]
    time_ms: int = 1000
    stored_at: str = ""
    raw_events: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.raw_events = [asdict(event) for event in self.parts]

    def events(self) -> Iterator[tuple[int, Any]]:
        return enumerate(self.parts)

    def blocks(self, _event: Any) -> None:
        return None


def turn(sequence: int, receivers: int) -> Any:
    """A message that some receivers acknowledge at once, and that waits for one more."""
    published = MessagePublished("p", 1, False, ["a"], [], [1], 1, 0, 1)
    refs = [position(sequence, 0)]
    parts: list[Any] = [published, Queued("away", "#", 1, refs, 1)]
    for number in range(receivers):
        parts += [Delivered(f"s{number}", "#", 1, [1], refs), Acked(f"s{number}", [1])]
    return OneTurn(sequence, parts)


def test_spans_that_wait_for_the_outcome_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outbox.sinks.spans._MOST_OPEN", 100)
    options = SpanOptions(ratio=0.0, dropped=True)
    fold = SpanFold("n", options, lambda _topic: True, (0, position(1000, 0)))
    for sequence in range(1, 51):
        assert fold.take([turn(sequence, 20)]) == []
    # Each message has its own span, 20 of receivers, and waits with one more.
    assert fold.through > position(45, 0)
    assert fold.finish() == []
    assert not fold._traces


def test_what_is_open_ends_on_a_quiet_log_as_it_does_with_a_later_turn() -> None:
    def fold_of_one() -> SpanFold:
        fold = SpanFold("n", SpanOptions(), lambda _topic: True, (0, position(1000, 0)))
        assert len(fold.take([turn(1, 0)])) == 1
        return fold

    quiet, busy = fold_of_one(), fold_of_one()
    assert quiet.wait(600_999) == []
    assert quiet.through == position(1, 0) - 1
    (span,) = quiet.wait(700_000)
    assert b'"foldmq.unfinished"' in span.payload
    assert b'"endTimeUnixNano":"601000000000"' in span.payload
    assert (quiet._traces, quiet.through) == ({}, position(2, 0) - 1)
    late = turn(2, 0)
    late.time_ms = 800_000
    assert busy.take([late])[0].payload == span.payload


class _Quiet:
    """The end of a log to which nothing is added."""

    async def reach(self, _sequence: int, seconds: float | None = None) -> int:
        assert seconds is not None
        return 0


async def test_the_reader_ends_what_is_open_on_a_quiet_log() -> None:
    source, selection = cast("Any", None), Selection(["#"])
    reader = TracedMessages(source, selection, _Quiet(), SpanOptions(), "n")
    async with contextlib.aclosing(reader.spans(0)) as portions:
        assert (await anext(portions)).messages == []
        reader._fold.take([turn(1, 0)])
        portion = await anext(portions)
    assert (len(portion.messages), portion.through) == (1, position(2, 0) - 1)


@pytest.mark.system
@pytest.mark.parametrize(
    "reply", ["", "[]", '{"partialSuccess": {"rejectedSpans": "many"}}', '{"partialSuccess": [1]}']
)
async def test_an_answer_that_is_no_otlp_is_a_success(reply: str) -> None:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(text=reply)

    async def never(_position: int) -> None:
        raise AssertionError

    application = web.Application()
    application.router.add_post("/v1/traces", answer)
    async with TestServer(application) as server:
        sink = OtlpSink(HttpOptions(str(server.make_url(""))))
        await sink.open(Destination("traces", "n", 1, 1, 0, 0, never))
        await sink.send([OutboxMessage(1, 1, 1, 1000, "a", b"{}", 1, False, "p")])
        await sink.close()
