"""Lines of a live trace as text: readable, and safe whatever names clients choose."""

from __future__ import annotations

import base64
import re
from typing import Any

import orjson
import pytest
from harness import packets as p
from simulation.world import SimClient, World, simulate

from actors.inspection.tracer import Tracer
from cli.logs.trace_text import TraceWords, packet_words

EVIL = 'ev\x1b[31mil\u202e\r\n\x9b"<b>'
AT = 5 << 20


def line(kind: str, what: str, **more: Any) -> dict[str, Any]:
    return {
        "ms": 1_800_000_000_123,
        "actor": "session:13",
        "client": "c",
        "kind": kind,
        "what": what,
        **more,
    }


def payload(data: bytes, size: int | None = None) -> dict[str, Any]:
    return {
        "size": len(data) if size is None else size,
        "payload_base64": base64.b64encode(data).decode(),
    }


DOOR = {
    "type": "PUBLISH",
    "qos": 1,
    "retain": False,
    "dup": False,
    "packet_id": 7,
    "topic": "hall/door",
    **payload(b"open!"),
}
ATTACH = {
    "connection": "connection:12",
    "client": "c",
    "level": 4,
    "clean": True,
    "keep_alive": 60,
    "user": "bob",
    "will": None,
}


PUBLISHED_400 = (
    "event 5.0 MessagePublished: published 400 messages to a QoS 1, 512 B, packets 1-400 "
    "(sizes: 400 in all)"
)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            line("packet_in", "PUBLISH", packet=DOOR),
            '<- PUBLISH QoS 1 packet 7 hall/door 5 B "open!"',
        ),
        (
            line(
                "packet_out",
                "PUBACK",
                packet={"type": "PUBACK", "packet_ids": [[1, 9, 1]], "count": 9},
            ),
            "-> PUBACK packets 1-9",
        ),
        (
            line("packet_in", "violation", text="PUBLISH with QoS 3"),
            "<- violation: PUBLISH with QoS 3",
        ),
        (
            line(
                "sends",
                "PUBACK",
                to="connection:12",
                to_client="c",
                packet={"type": "PUBACK", "packet_ids": [7], "count": 1},
            ),
            "-> connection:12 (c) PUBACK packet 7",
        ),
        (
            line(
                "sends",
                "Batch",
                to="subscription:4",
                to_client="r",
                more=9999,
                message={
                    "qos": 1,
                    "retain": False,
                    "count": 2,
                    "messages": [{"topic": "a", **payload(b"x")}, {"topic": "b", **payload(b"y")}],
                },
            ),
            "-> subscription:4 (r) and 9,999 more Batch: QoS 1, 2 messages: a, b",
        ),
        (
            line("gets", "ConnectionAttached", message=ATTACH),
            "<- ConnectionAttached: connection:12 c: MQTT 3.1.1, clean, keep alive 60 s, user bob",
        ),
        (
            line(
                "gets",
                "ConnectionDetached",
                message={"connection": None, "reason": "kicked", "orderly": False},
            ),
            "<- ConnectionDetached: an operator disconnected the client",
        ),
        (line("gets", "Writable", message={}), "<- Writable"),
        (
            line(
                "event",
                "Acked",
                position=AT + 3,
                event={"session": "c", "pids": [7], "e": "Acked", "v": 1},
            ),
            "event 5.3 Acked: acknowledged packet 7 (PUBACK)",
        ),
        (
            line(
                "event",
                "MessagePublished",
                position=AT,
                size=512,
                cut={"sizes": 400},
                event={
                    "session": "c",
                    "qos": 1,
                    "retain": False,
                    "topics": ["a"],
                    "which": [],
                    "pids": [[1, 400, 1]],
                    "sizes": [1] * 20,
                    "at": 0,
                    "count": 400,
                    "e": "MessagePublished",
                    "v": 1,
                },
            ),
            PUBLISHED_400,
        ),
        (
            line("publish", "PUBLISH", packet=DOOR, position=AT, will=False, waits=True),
            'published QoS 1 packet 7 hall/door 5 B "open!" at 5.0, waiting for PUBREL',
        ),
        (
            line(
                "route",
                "route",
                topic="hall/door",
                count=1,
                total=2,
                targets=[
                    {"client": "r", "filter": "hall/#", "qos": 1, "connected": True},
                    {"client": "x", "filter": "#", "qos": 1, "connected": False},
                ],
            ),
            "hall/door goes to r (hall/#) QoS 1, x (#) QoS 1 later",
        ),
        (line("route", "route", topic="a", count=1, total=0, targets=[]), "a has no receiver"),
        (line("starts", "Session"), "starts"),
        (line("fails", "RuntimeError: boom"), "fails: RuntimeError: boom"),
        (
            line("closes", "keep_alive"),
            "closes: the client sent no packet for one and a half times its keep alive",
        ),
        (line("closes", "later"), "closes: later"),
        (line("dances", "well"), "dances well"),
    ],
)
def test_lines_as_text(given: dict[str, Any], said: str) -> None:
    shown = TraceWords().text(given)
    assert re.fullmatch(r"\d\d:\d\d:\d\d\.123 session:13 {6} .*", shown)
    assert shown.endswith(f" {said}")
    assert TraceWords(who=True).text(given).endswith(f" {said}")


def test_the_topic_of_a_message_is_remembered() -> None:
    words = TraceWords()
    acked = line(
        "event",
        "Delivered",
        position=AT + 1,
        event={
            "session": "c",
            "filter": "#",
            "qos": 1,
            "pids": [1],
            "refs": [AT],
            "e": "Delivered",
            "v": 1,
        },
    )
    assert "message 5.0" in words.text(acked)
    words.text(line("publish", "PUBLISH", packet=DOOR, position=AT))
    assert "sent hall/door (5.0) QoS 1, packet 1, for #" in words.text(acked)


@pytest.mark.parametrize(
    ("data", "size", "shown"),
    [
        (b"", 0, '""'),
        (b"x" * 200, 5000, f'"{"x" * 40}"...'),
        ("é".encode() * 40, 80, f'"{"é" * 40}"'),
        ("é".encode() * 41, 82, f'"{"é" * 40}"...'),
        (b'\xff\x1b"', 3, r'"\xff\u001b\""'),
    ],
)
def test_the_beginning_of_a_payload_is_shown(data: bytes, size: int, shown: str) -> None:
    said = packet_words({**DOOR, **payload(data, size)})
    assert said.endswith((f" B {shown}", f" KiB {shown}"))


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"ms": "x"},
        {"kind": "event"},
        line("packet_in", "PUBLISH", packet={"type": "PUBLISH"}),
        line("event", "Acked", position="x", event=[]),
        line("gets", "Batch", message={"qos": EVIL}),
        {EVIL: EVIL},
    ],
)
def test_unknown_lines_are_shown_unchanged(broken: dict[str, Any]) -> None:
    shown = TraceWords().text(broken)
    assert shown.isprintable()
    assert shown


def test_hostile_names_stay_on_their_line() -> None:
    async def scenario() -> list[dict[str, Any]]:
        sent: list[bytes] = []
        async with World().running() as world:
            tracer = Tracer(
                world.broker.node, world.broker.admission, lambda _subject, data: sent.append(data)
            )
            tracer.start({"token": "c" * 22, "client": EVIL, "rate": 5000})
            tracer.start({"token": "t" * 22, "topic": "#", "rate": 5000})
            other = await world.connect(EVIL + "2", filters=[(EVIL, 2)])
            tracer.start({"token": "a" * 22, "actor": other.connection.actor_urn, "rate": 5000})
            client = SimClient(world)
            will = p.Will(EVIL, EVIL.encode(), 1)
            client.send(p.connect(EVIL, username=EVIL, password=b"x", will=will))
            await world.go(0.2)
            client.send(
                p.subscribe(1, (EVIL, 1), ("n" * 60_000, 1)),
                p.publish(EVIL, EVIL.encode() + b"\xff", 1, 1),
                p.publish(EVIL, EVIL.encode(), 0),
                p.publish(EVIL + "n" * 60_000, EVIL.encode(), 2, 2),
                p.pubrel(2),
                p.unsubscribe(3, EVIL),
            )
            await world.go(0.2)
            client.transport.drop()
            await world.go(0.2)
        return [one for data in sent for one in orjson.loads(data)["lines"]]

    lines = simulate(scenario)
    kinds = {one["kind"] for one in lines}
    assert kinds >= {
        "packet_in",
        "packet_out",
        "gets",
        "sends",
        "event",
        "publish",
        "route",
        "starts",
        "ends",
        "closes",
    }
    for words in (TraceWords(), TraceWords(who=True)):
        for one in lines:
            shown = words.text(one)
            assert shown.isprintable()
            assert len(shown) < 1000
            assert "\x1b" not in shown
