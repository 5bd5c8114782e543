"""Lines of a live trace as text: readable, and safe whatever names clients choose."""

import base64
import re
from typing import Any

import orjson
import pytest
from harness import packets as p
from simulation.world import SimClient, World, simulate

from actors.inspection.tracer import Tracer
from cli.logs.trace_text import trace_text

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
    "connect": {
        "client": "c",
        "level": 4,
        "clean": True,
        "keep_alive": 60,
        "user": "bob",
        "password": True,
        "will": {"topic": "gone", "size": 7, "qos": 1, "retain": False},
    },
}
BATCH = {
    "qos": 1,
    "retain": False,
    "count": 5,
    "messages": [{"topic": "a", **payload(b"x")}, {"topic": "b", **payload(b"y")}],
}
ACKED = {"position": "5.3", "type": "Acked", "session": "c", "packet_ids": [7]}


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (
            line("packet_in", "PUBLISH", packet=DOOR),
            '<- PUBLISH qos=1 packet_id=7 topic=hall/door size=5 payload="open!"',
        ),
        (
            line(
                "packet_out",
                "PUBACK",
                packet={"type": "PUBACK", "packet_ids": [[1, 9, 1]], "count": 9},
            ),
            "-> PUBACK packet_ids=1-9 count=9",
        ),
        (
            line("packet_out", "CONNACK", packet={"reason": 0x87, "session_present": False}),
            "-> CONNACK reason=0x87 (not authorized)",
        ),
        (
            line("packet_out", "CONNACK", packet={"type": "CONNACK", "reason": 5}),
            "-> CONNACK reason=not authorized",
        ),
        (
            line("packet_out", "SUBACK", packet={"packet_id": 1, "codes": [1, 0x87]}),
            "-> SUBACK packet_id=1 codes=[0x01 (granted qos 1); 0x87 (not authorized)]",
        ),
        (
            line("gets", "Retained", message={"count": 1, "messages": [{"position": AT}]}),
            "<- Retained count=1 messages=[position=5.0]",
        ),
        (
            line("packet_in", "SUBSCRIBE", packet={"packet_id": 1, "filters": [["a/#", 1]]}),
            "<- SUBSCRIBE packet_id=1 filters=[a/# 1]",
        ),
        (
            line("packet_in", "violation", text="PUBLISH with QoS 3"),
            "<- violation: PUBLISH with QoS 3",
        ),
        (
            line("sends", "PUBACK", to="connection:12", to_client="c", packet={"packet_id": 7}),
            "-> connection:12 (c) PUBACK packet_id=7",
        ),
        (
            line("sends", "Batch", to="subscription:4", to_client="r", more=9999, message=BATCH),
            (
                "-> subscription:4 (r) and 9,999 more Batch qos=1 count=5 "
                'messages=[topic=a size=1 payload="x"; topic=b size=1 payload="y"; ...]'
            ),
        ),
        (
            line("gets", "ConnectionAttached", message=ATTACH),
            (
                "<- ConnectionAttached connection=connection:12 connect.client=c connect.level=4 "
                "connect.clean connect.keep_alive=60 connect.user=bob connect.password "
                "connect.will.topic=gone connect.will.size=7 connect.will.qos=1"
            ),
        ),
        (
            line("gets", "ConnectionDetached", message={"reason": "kicked", "orderly": False}),
            "<- ConnectionDetached reason=an operator disconnected the client",
        ),
        (line("gets", "Writable", message={}), "<- Writable"),
        (
            line("event", "Acked", position=AT + 3, event=ACKED, text="acknowledged packet 7"),
            "event 5.3 Acked: acknowledged packet 7",
        ),
        (
            line("event", "Queued", position=AT, event={}, text="queued", cut={"refs": 4000}),
            "event 5.0 Queued: queued (refs: 4,000 in all)",
        ),
        (
            line("publish", "PUBLISH", packet=DOOR),
            'published qos=1 packet_id=7 topic=hall/door size=5 payload="open!"',
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
def test_lines_as_text(given: dict[str, Any], shown: str) -> None:
    printed = trace_text(given)
    assert re.fullmatch(r"\d\d:\d\d:\d\d\.123 session:13 {6} .*", printed)
    assert printed.endswith(f" {shown}")
    assert trace_text(given, who=True).endswith(f" {shown}")
    assert " p1 session:13 " in trace_text(given, log="p1")


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
    printed = trace_text(line("packet_in", "PUBLISH", packet={**DOOR, **payload(data, size)}))
    assert printed.endswith(f" payload={shown}")
    assert f" size={size} " in printed or not size


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"ms": "x"},
        {"kind": "event"},
        line("packet_in", "PUBLISH", packet=[EVIL]),
        line("event", "Acked", position="x", text=EVIL),
        line("event", "Acked", position=AT, text=EVIL),
        line("gets", "Batch", message={EVIL: EVIL, "messages": [{EVIL: EVIL}]}),
        {EVIL: EVIL},
    ],
)
def test_unknown_lines_are_shown_unchanged(broken: dict[str, Any]) -> None:
    shown = trace_text(broken)
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
    for who in (False, True):
        for one in lines:
            shown = trace_text(one, who=who)
            assert shown.isprintable()
            assert len(shown) < 1000
            assert "\x1b" not in shown
