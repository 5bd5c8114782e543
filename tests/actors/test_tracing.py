"""Live traces: their content, their bounds, and their complete removal."""

import base64
from types import SimpleNamespace
from typing import Any, NamedTuple

import orjson
import pytest
from harness import packets as p
from harness.packets import Publish
from simulation.world import SimClient, World, in_world, simulate

from actors.connection.connection import Connection
from actors.inspection import trace_lines as tracelines
from actors.inspection.inspector import Refused
from actors.inspection.tracer import MAX_TRACES, Tracer
from actors.kernel.actor import LoopActor
from actors.kernel.kernel import Kernel
from actors.session.packet_handler import PacketHandler
from actors.session.session_messages import ConnectionDetached, Publication, Retry
from eventstore.format.events import RetainedExpired
from eventstore.format.positions import position
from projections.past.event_object import event_object

TOKEN = "T" * 22
Line = dict[str, Any]


class Sink:
    """What a tracer publishes."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes]] = []

    def publish(self, subject: str, data: bytes) -> None:
        self.sent.append((subject, data))

    def messages(self, token: str = TOKEN) -> list[dict[str, Any]]:
        return [orjson.loads(data) for subject, data in self.sent if subject.endswith(token)]

    def lines(self, token: str = TOKEN, **wanted: object) -> list[Line]:
        return [
            line
            for message in self.messages(token)
            for line in message["lines"]
            if all(line.get(key) == value for key, value in wanted.items())
        ]

    def skipped(self, token: str = TOKEN) -> int:
        return sum(message["skipped"] for message in self.messages(token))

    def kinds(self, token: str = TOKEN) -> list[tuple[str, str]]:
        return [(line["kind"], line["what"]) for line in self.lines(token)]


def tracing(world: World) -> tuple[Tracer, Sink]:
    sink = Sink()
    return Tracer(world.broker.node, world.broker.admission, sink.publish), sink


def overrides(world: World) -> list[str]:
    """Which observers there are at present, and which actors have one."""
    broker = world.broker
    journal = broker.node.journal
    observers = {"kernel": broker.kernel.observer, "journal": journal.observer}
    found = [name for name, observer in observers.items() if observer is not None]
    found += ["on_spawn"] if broker.kernel.on_spawn is not None else []
    found += ["on_connect"] if broker.admission.on_connect is not None else []
    found += ["watch"] if broker.node.observers else []
    return found + [actor.actor_urn for actor in broker.kernel if actor.observer is not None]


def logged(world: World) -> dict[int, str]:
    """The types of the events on disk by position."""
    return {
        position(record.sequence, index): event.e
        for record in world.disk.decoded()
        for index, event in record.events()
    }


async def talk(world: World) -> None:
    """Two clients: everything that a client commonly does."""
    receiver = await world.connect("r", filters=[("hall/#", 1), ("cmd/+", 2)])
    sender = await world.connect("s")
    sender.send(
        p.publish("hall/door", b"open!", 1, 7),
        p.publish("hall/door", b"free"),
        p.publish("cmd/x", b"twice", 2, 8),
    )
    await world.go(0.5)
    sender.send(p.pubrel(8))
    await world.go(0.5)
    for one in receiver.take():
        if isinstance(one, Publish) and one.qos == 1:
            receiver.send(p.puback(one.packet_id or 0))
        elif isinstance(one, Publish) and one.qos == 2:
            receiver.send(p.pubrec(one.packet_id or 0))
            await world.go(0.2)
            receiver.send(p.pubcomp(one.packet_id or 0))
    await world.go(0.5)
    receiver.send(p.pingreq())
    await world.go(0.2)
    receiver.send(p.unsubscribe(5, "cmd/+"), p.disconnect())
    await world.go(0.5)


# A client.


@in_world()
async def test_a_client_is_traced_from_its_first_packet_to_its_last(world: World) -> None:
    tracer, sink = tracing(world)
    answer = tracer.start({"token": TOKEN, "client": "r"})
    assert answer["subject"] == f"foldmq.trace.sim.{TOKEN}"
    assert (answer["lease_s"], answer["connected"], answer["known"]) == (15, False, False)
    await talk(world)
    packets = [
        (line["kind"], line["what"]) for line in sink.lines() if line["kind"].startswith("packet")
    ]
    assert packets == [
        ("packet_in", "CONNECT"),
        ("packet_out", "CONNACK"),
        ("packet_in", "SUBSCRIBE"),
        ("packet_out", "SUBACK"),
        ("packet_out", "PUBLISH"),
        ("packet_out", "PUBLISH"),
        ("packet_out", "PUBLISH"),
        ("packet_in", "PUBACK"),
        ("packet_in", "PUBREC"),
        ("packet_out", "PUBREL"),
        ("packet_in", "PUBCOMP"),
        ("packet_in", "PINGREQ"),
        ("packet_out", "PINGRESP"),
        ("packet_in", "UNSUBSCRIBE"),
        ("packet_in", "DISCONNECT"),
        ("packet_out", "UNSUBACK"),
    ]
    # Its events, all of them, at the positions at which they stand in the log.
    await world.go(1)
    shown = {line["position"]: line["what"] for line in sink.lines(kind="event")}
    own = {
        position(record.sequence, index): event.e
        for record in world.disk.decoded()
        for index, event in record.events()
        if getattr(event, "session", None) == "r"
    }
    assert shown == own
    printed = {
        position(record.sequence, index): event_object(
            event, position(record.sequence, index), record.time_ms, {}, None
        )
        for record in world.disk.decoded()
        for index, event in record.events()
    }
    for line in sink.lines(kind="event"):
        # As foldmq log --json prints it; here without the topics of messages.
        seen = line["event"]
        expected = orjson.loads(orjson.dumps(printed[line["position"]]))
        assert list(seen) == list(expected)
        assert {**seen, "time": 0, "messages": 0} == {**expected, "time": 0, "messages": 0}
    assert {line["client"] for line in sink.lines()} == {"r"}
    assert sink.skipped() == 0


@in_world()
async def test_packets_are_decoded(world: World) -> None:
    tracer, sink = tracing(world)
    tracer.start({"token": TOKEN, "client": "r"})
    await talk(world)
    (connect,) = sink.lines(what="CONNECT")
    assert connect["packet"]["keep_alive"] == 0
    (subscribe,) = sink.lines(what="SUBSCRIBE")
    assert subscribe["packet"]["filters"] == [["hall/#", 1], ["cmd/+", 2]]
    free, door, twice = (
        one["packet"] for one in sink.lines(kind="packet_out") if one["what"] == "PUBLISH"
    )
    assert (free["qos"], free.get("packet_id")) == (0, None)
    assert (door["qos"], door["packet_id"], door["topic"]) == (1, 1, "hall/door")
    assert base64.b64decode(door["payload_base64"]) == b"open!"
    assert (twice["qos"], twice["size"]) == (2, 5)
    (batch, *_) = sink.lines(kind="gets", what="Batch")
    assert batch["actor"].startswith("subscription:")
    assert batch["message"]["messages"][0]["topic"] == "hall/door"


@in_world()
async def test_a_message_between_actors_of_one_trace_is_shown_once(world: World) -> None:
    tracer, sink = tracing(world)
    tracer.start({"token": TOKEN, "client": "r"})
    await talk(world)
    # To others only: the broker is asked for the session.
    assert not sink.lines(kind="gets", what="Packets")
    assert all(line["to_client"] != "r" for line in sink.lines(kind="sends"))


@in_world()
async def test_a_trace_follows_its_client_through_reconnects_and_freezing(world: World) -> None:
    first = await world.connect("r", filters=[("hall/#", 1)])
    tracer, sink = tracing(world)
    answer = tracer.start({"token": TOKEN, "client": "r"})
    assert answer["connected"]
    assert len(answer["actors"]) == 3
    first.transport.drop()
    await world.go(3)  # the session is frozen
    assert [line["actor"] for line in sink.lines(kind="ends")][-1].startswith("session:")
    sender = await world.connect("s")
    sender.send(p.publish("hall/x", b"1", 1, 1))
    await world.go(0.5)
    assert sink.lines(kind="event", what="Queued")
    await world.connect("r")
    await world.go(0.5)
    assert sink.lines(what="CONNECT")
    assert sink.lines(kind="event", what="Delivered")
    assert sink.lines(kind="packet_out", what="PUBLISH")
    # Taken over: the old connection is shown until it ends.
    await world.connect("r")
    assert sink.lines(kind="event", what="SessionTakenOver")
    assert ("closes", "taken_over") in sink.kinds()


@in_world(max_sessions=1)
async def test_a_refused_login_is_shown_and_no_password_ever(world: World) -> None:
    await world.connect("other")
    tracer, sink = tracing(world)
    tracer.start({"token": TOKEN, "client": "r"})
    client = SimClient(world)
    will = p.Will("gone", b"will-secret")
    client.send(p.connect("r", username="bob", password=b"pass-secret", will=will, keepalive=5))
    await world.go(1)
    (connect,) = sink.lines(what="CONNECT")
    assert connect["packet"]["user"] == "bob"
    assert connect["packet"]["password"] is True
    assert connect["packet"]["will"]["size"] == len(b"will-secret")
    (connack,) = sink.lines(what="CONNACK")
    assert connack["packet"]["reason"] == 3
    everything = b"".join(data for _, data in sink.sent)
    for secret in (b"pass-secret", b"will-secret"):
        assert secret not in everything
        assert base64.b64encode(secret).rstrip(b"=") not in everything


def test_requests_of_operators_are_shown_without_their_tokens() -> None:
    class Query(NamedTuple):
        endpoint: str
        request: dict[str, str]

    message = Query("trace.keep", {"token": "secret"})
    assert tracelines.message_object(message) == ("Query", {})


def test_the_end_of_a_connection_has_its_fields() -> None:
    end = ConnectionDetached(None, "keep_alive", orderly=False)
    fields = {"reason": "keep_alive", "orderly": False, "code": 0}
    assert tracelines.message_object(end) == ("ConnectionDetached", fields)
    assert tracelines.message_object(Retry(end, 2)) == ("Retry", {**fields, "attempts": 2})


@in_world()
async def test_a_violation_of_the_protocol_is_shown(world: World) -> None:
    tracer, sink = tracing(world)
    tracer.start({"token": TOKEN, "client": "r"})
    client = await world.connect("r")
    client.send(p.packet(p.PUBLISH, 6))
    await world.go(1)
    (line,) = sink.lines(what="violation")
    assert "QoS 3" in line["text"]
    assert ("closes", "protocol_error") in sink.kinds()


@in_world()
async def test_a_client_of_thousands_of_subscriptions_is_covered_step_by_step(world: World) -> None:
    count = 1700
    client = await world.connect("r", filters=[(f"a/{n}", 0) for n in range(count)])
    tracer, sink = tracing(world)
    answer = tracer.start({"token": TOKEN, "client": "r"})
    assert len(answer["actors"]) == 20
    assert 500 <= len(overrides(world)) < count
    await world.go(0.1)
    assert len([one for one in overrides(world) if one.startswith("subscr")]) == count
    client.send(p.publish(f"a/{count - 1}", b"x"))
    await world.go(0.1)
    assert sink.lines(kind="gets", what="Batch")
    tracer.stop({"token": TOKEN})
    await world.go(0.1)
    assert overrides(world) == []


# One actor.


@in_world()
async def test_the_trace_of_an_actor_ends_with_it(world: World) -> None:
    client = await world.connect("r")
    tracer, sink = tracing(world)
    urn = next(iter(world.broker.admission.connections)).actor_urn
    tracer.start({"token": TOKEN, "actor": urn})
    client.send(p.subscribe(1, ("a", 0)))
    await world.go(0.2)
    assert ("sends", "Packets") in sink.kinds()
    client.send(p.disconnect())
    await world.go(1)
    last = sink.messages()[-1]
    assert (last["ended"], last["cause"]) == (f"{urn} stopped", "actor")
    assert len(tracer) == 0
    assert overrides(world) == []


@in_world()
async def test_the_trace_of_a_session_shows_output_at_the_gate(world: World) -> None:
    client = await world.connect("r", filters=[("a", 1)])
    tracer, sink = tracing(world)
    session = world.broker.sessions.find_session("r")
    assert session is not None
    tracer.start({"token": TOKEN, "actor": session.actor_urn})
    world.log.hold()
    client.send(p.publish("a", b"x", 1, 7))
    await world.go(0.5)
    puback, publish = sink.lines(kind="sends", to_client="r")[-2:]
    assert (puback["what"], puback["packet"]["packet_ids"]) == ("PUBACK", [7])
    assert publish["what"] == "PUBLISH"
    assert sink.lines(kind="gets", what="PUBLISH")[0]["packet"]["packet_id"] == 7
    assert not sink.lines(kind="packet_out")
    world.log.release()


@in_world()
async def test_a_message_to_many_is_one_line(world: World) -> None:
    for number in range(30):
        await world.connect(f"r{number}", filters=[("a", 0)])
    sender = await world.connect("s")
    tracer, sink = tracing(world)
    tracer.start({"token": TOKEN, "client": "s"})
    sender.send(p.publish("a", b"x", 1, 7), p.publish("a", b"y", 1, 8))
    await world.go(0.5)
    (line,) = sink.lines(kind="sends", what="Batch")
    assert line["more"] == 29
    assert line["message"]["count"] == 2


# Topics.


@in_world()
async def test_messages_on_a_topic_are_followed_from_publisher_to_acknowledgement(
    world: World,
) -> None:
    await world.connect("other", filters=[("hall/door", 1)])
    tracer, sink = tracing(world)
    tracer.start({"token": TOKEN, "topic": "hall/#"})
    await talk(world)
    told = [(one["kind"], one["what"], one["client"]) for one in sink.lines()]
    assert told[:4] == [
        ("event", "MessagePublished", "s"),
        ("route", "route", "s"),
        ("publish", "PUBLISH", "s"),
        ("route", "route", "s"),
    ]
    assert sorted(told[4:6]) == [
        ("event", "Delivered", "other"),
        ("event", "Delivered", "r"),
    ]
    assert told[6:] == [("event", "Acked", "r")]
    publish, route, free, free_route = sink.lines()[:4]
    (delivered,) = sink.lines(what="Delivered", client="r")
    (acked,) = sink.lines(what="Acked")
    assert publish["event"]["qos"] == 1
    assert publish["text"] == ('published hall/door QoS 1, 5 B, packet 7: "open!"')
    (message,) = publish["event"]["messages"]
    assert (message["topic"], message["packet_id"]) == ("hall/door", 7)
    assert base64.b64decode(message["payload_base64"]) == b"open!"
    assert publish["actor"] == route["actor"]
    assert sorted(one["client"] for one in route["targets"]) == ["other", "r"]
    theirs = {"client": "r", "filter": "hall/#", "qos": 1, "connected": True}
    assert theirs in route["targets"]
    assert "position" not in free
    assert [one["qos"] for one in free_route["targets"]] == [0, 0]
    assert delivered["messages"] == [
        {"position": publish["position"], "topic": "hall/door", "size": 5}
    ]
    assert acked["messages"] == delivered["messages"]
    await world.go(1)
    log = logged(world)
    assert log[publish["position"]] == "MessagePublished"
    assert log[delivered["position"]] == "Delivered"
    assert log[acked["position"]] == "Acked"


@in_world()
async def test_a_qos_2_message_is_followed_through_both_handshakes(world: World) -> None:
    tracer, sink = tracing(world)
    tracer.start({"token": TOKEN, "topic": "cmd/x"})
    await talk(world)
    told = [(one["kind"], one["what"]) for one in sink.lines()]
    assert told == [
        ("event", "MessagePublished"),
        ("event", "Released"),
        ("route", "route"),
        ("event", "Delivered"),
        ("event", "Received"),
        ("event", "Completed"),
    ]
    published, *followed = sink.lines(kind="event")
    at = published["position"]
    assert all(one["messages"][0]["position"] == at for one in followed)


@in_world(max_queued_messages=3)
async def test_of_an_event_about_many_messages_only_those_that_match_are_shown(
    world: World,
) -> None:
    away = await world.connect("away", filters=[("#", 1)])
    away.transport.drop()
    sender = await world.connect("s")
    tracer, sink = tracing(world)
    tracer.start({"token": TOKEN, "topic": "yes/+"})
    topics = ["no/1", "yes/1", "no/2", "yes/2", "no/3", "yes/3"]
    sender.send(*(p.publish(one, b"abc", 1, n) for n, one in enumerate(topics, 1)))
    await world.go(0.5)
    (queued,) = sink.lines(what="Queued")
    (dropped,) = sink.lines(what="MessageDropped")
    (first, second, third) = [one["position"] for one in sink.lines(what="MessagePublished")]
    assert [one["position"] for one in queued["messages"]] == [first]
    assert queued["event"]["size"] == 3
    assert dropped["event"]["count"] == 2
    assert [one["position"] for one in dropped["messages"]] == [second, third]


@in_world()
async def test_a_message_of_a_shared_subscription_is_followed_to_the_next_member(
    world: World,
) -> None:
    one = await world.connect("m1", filters=[("$share/g/a", 1)])
    sender = await world.connect("s")
    tracer, sink = tracing(world)
    tracer.start({"token": TOKEN, "topic": "a"})
    sender.send(p.publish("a", b"x", 1, 7))
    await world.go(0.5)
    one.drop()
    await world.go(0.5)
    published, *followed = sink.lines(kind="event")
    told = [(line["what"], line["client"]) for line in followed]
    assert told == [
        ("Delivered", "m1"), ("Assigned", "$share/g/a"), ("Returned", "m1"),
        ("Queued", "$share/g/a"),
    ]  # fmt: skip
    (route,) = sink.lines(kind="route")
    (target,) = route["targets"]
    assert (target["client"], target["connected"]) == ("$share/g/a", True)
    at = published["position"]
    assert all(line["messages"][0]["position"] == at for line in followed)


@in_world()
async def test_a_retained_message_that_expires_is_traced(world: World) -> None:
    tracer, sink = tracing(world)
    tracer.start({"token": TOKEN, "topic": "a"})
    world.broker.node.emit(RetainedExpired(["a", "b"]))
    await world.go(0.5)
    (line,) = sink.lines(kind="event")
    assert (line["what"], line["event"]["topics"]) == ("RetainedExpired", ["a"])


@in_world()
async def test_a_topic_without_publications_has_no_lines(world: World) -> None:
    tracer, sink = tracing(world)
    tracer.start({"token": TOKEN, "topic": "quiet/#"})
    await talk(world)
    assert sink.sent == []


# Bounds.


@pytest.mark.parametrize("wanted", [{"client": "s"}, {"client": "r"}, {"topic": "a/#"}])
@in_world()
async def test_skipped_lines_are_counted(world: World, wanted: dict[str, str]) -> None:
    await world.connect("r", filters=[("a/#", 1)])
    sender = await world.connect("s")
    tracer, sink = tracing(world)
    few, many = "f" * 22, "m" * 22
    tracer.start({"token": few, "rate": 5, **wanted})
    tracer.start({"token": many, "rate": 5000, **wanted})
    for n in range(30):
        sender.send(
            p.publish(f"a/{n}", b"x", 1, 3 * n + 1),
            p.publish("b", b"x", 1, 3 * n + 2),
            p.publish("a/z", b"x"),
        )
        await world.go(0.01)
    await world.go(0.1)
    assert len(sink.lines(few)) == 5
    assert sink.skipped(many) == 0
    # The trace of one client's actors has others in its lines: each sees the same.
    assert len(sink.lines(few)) + sink.skipped(few) == len(sink.lines(many))
    assert sink.lines(few) == sink.lines(many)[:5]
    await world.go(1.5)
    sender.send(p.publish("a/later", b"x", 1, 9))
    await world.go(0.5)
    assert len(sink.lines(few)) > 5


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("wanted", [{"client": "s"}, {"topic": "a"}])
@in_world()
async def test_of_a_large_batch_the_beginning_is_shown(
    world: World, wanted: dict[str, str], qos: int
) -> None:
    sender = await world.connect("s")
    await world.go(1.5)  # input of new clients is handled in slices
    tracer, sink = tracing(world)
    tracer.start({"token": TOKEN, "rate": 5000, **wanted})
    sender.send(
        *(p.publish("a", b"x", qos, n or None) for n in (range(1, 3001) if qos else [0] * 3000))
    )
    await world.go(0.5)
    published = sink.lines(what="MessagePublished") if "topic" in wanted else []
    shown = len(sink.lines(what="PUBLISH")) + len(published)
    # Of each part that a turn takes; at QoS 1 there are six of them.
    parts = 6 if qos else 1
    assert 0 < shown <= 100 * parts
    # The route of each part is one line more; other kinds of lines are not so many.
    assert 3000 <= shown + sink.skipped() <= 3000 + parts


@in_world()
async def test_a_flood_of_lines_stays_small(world: World) -> None:
    sender = await world.connect("s")
    tracer, sink = tracing(world)
    tracer.start({"token": TOKEN, "rate": 5000, "client": "s"})
    name = "\x1b[31m" * 10_000
    for n in range(1, 60):
        sender.send(
            p.publish(name, bytes(100_000), 1, n),
            p.subscribe(n, *[(f"{name}{at}", 1) for at in range(5)]),
        )
        await world.go(0.02)
    assert max(len(data) for _, data in sink.sent) < 512 * 1024
    line = sink.lines(what="PUBLISH")[0]
    assert len(line["packet"]["topic"]) < 300
    assert line["packet"]["size"] == 100_000


@in_world()
async def test_a_trace_without_renewal_ends(world: World) -> None:
    tracer, sink = tracing(world)
    tracer.start({"token": TOKEN, "client": "r"})
    for _ in range(3):
        await world.go(10)
        assert tracer.keep({"token": TOKEN})["lease_s"] == 15
    await world.go(17)
    (last,) = sink.messages()
    assert last["cause"] == "lease"
    assert overrides(world) == []
    with pytest.raises(Refused, match="no such trace"):
        tracer.keep({"token": TOKEN})


@in_world()
async def test_there_are_only_so_many_traces_at_once(world: World) -> None:
    tracer, sink = tracing(world)
    for number in range(MAX_TRACES):
        tracer.start({"token": TOKEN + str(number), "client": "r"})
    with pytest.raises(Refused, match="no more are allowed"):
        tracer.start({"token": TOKEN + "x", "client": "r"})
    with pytest.raises(Refused, match="this token already exists"):
        tracer.start({"token": TOKEN + "0", "client": "r"})
    tracer.stop({"token": TOKEN + "0"})
    tracer.start({"token": TOKEN + "x", "client": "r"})
    tracer.close()
    assert len(tracer) == 0
    assert {message["cause"] for message in sink.messages("x")} == {"broker"}
    assert overrides(world) == []


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        ({}, "token must be text"),
        ({"token": "short"}, "letters and digits"),
        ({"token": "a" * 21 + "."}, "letters and digits"),
        ({"token": "a" * 22 + "\n"}, "letters and digits"),
        ({"token": ">" * 22}, "letters and digits"),
        ({"token": "é" * 22}, "letters and digits"),
        ({"token": "a" * 65}, "letters and digits"),
        ({"token": TOKEN}, "one of actor, client and topic"),
        ({"token": TOKEN, "client": "a", "topic": "b"}, "one of actor, client and topic"),
        ({"token": TOKEN, "client": 5}, "client must be text"),
        ({"token": TOKEN, "client": ""}, "client identifier"),
        ({"token": TOKEN, "client": "é" * 40_000}, "client identifier"),
        ({"token": TOKEN, "topic": "a/#/b"}, "not a whole level"),
        ({"token": TOKEN, "topic": "$SYS/#"}, "no client publishes there"),
        ({"token": TOKEN, "topic": "$JS/x"}, "no client publishes there"),
        ({"token": TOKEN, "actor": "session:99"}, "no actor 'session:99'"),
        ({"token": TOKEN, "actor": "session:1"}, "no actor 'session:1'"),
        ({"token": TOKEN, "actor": "broker:" + "1" * 9000}, "no actor"),
        ({"token": TOKEN, "actor": "\x1b[2J"}, r"no actor '\\x1b\[2J'"),
        ({"token": TOKEN, "client": "a", "rate": 0}, "rate must be"),
        ({"token": TOKEN, "client": "a", "rate": 5001}, "rate must be"),
        ({"token": TOKEN, "client": "a", "rate": True}, "rate must be"),
        ({"token": TOKEN, "client": "a", "rate": "9"}, "rate must be"),
    ],
)
@in_world()
async def test_a_bad_request_is_refused_in_a_sentence(
    world: World, request_: dict[str, Any], why: str
) -> None:
    tracer, _ = tracing(world)
    with pytest.raises(Refused, match=why):
        tracer.start(request_)
    assert len(tracer) == 0
    assert overrides(world) == []


# Nothing stays behind, and nothing goes wrong because of a trace.


@in_world()
async def test_observers_are_gone_between_runs_and_after_the_trace(world: World) -> None:
    client = await world.connect("r", filters=[("a", 1)])
    tracer, _ = tracing(world)
    tracer.start({"token": TOKEN, "client": "r"})
    tracer.start({"token": TOKEN + "t", "topic": "#"})
    client.send(p.publish("a", b"x", 1, 7))
    await world.go(0.5)
    found = overrides(world)
    assert "kernel" not in found
    assert {"journal", "on_spawn", "on_connect", "watch"} < set(found)
    tracer.stop({"token": TOKEN})
    tracer.stop({"token": TOKEN + "t"})
    assert overrides(world) == []


@pytest.mark.plain
def test_an_actor_that_fails_leaves_nothing_behind_and_its_successor_is_traced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_self: PacketHandler, _connection: Connection, _ids: list[int]) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr(PacketHandler, "_on_release", fail)

    async def scenario() -> None:
        async with World().running() as world:
            client = await world.connect("r", filters=[("a", 1)])
            tracer, sink = tracing(world)
            session = world.broker.sessions.find_session("r")
            assert session is not None
            tracer.start({"token": TOKEN, "client": "r"})
            tracer.start({"token": TOKEN + "1", "actor": session.actor_urn})
            client.send(p.pubrel(1))
            await world.go(1)
            assert not {"tell", "send_when_durable", "send_unlogged"} & set(overrides(world))
            (failed,) = sink.lines(kind="fails")
            assert failed["what"] == "RuntimeError: boom"
            assert sink.messages(TOKEN + "1")[-1]["ended"] == (
                f"{session.actor_urn} failed: RuntimeError: boom"
            )
            assert sink.lines(kind="starts", what="Session")
            await world.connect("r")
            assert sink.lines(kind="event", what="SessionOpened")

    simulate(scenario)


@in_world()
async def test_a_failure_of_the_trace_is_not_the_actors(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no line")

    tracer, _ = tracing(world)
    tracer.start({"token": TOKEN, "client": "r"})
    tracer.start({"token": TOKEN + "t", "topic": "#"})
    monkeypatch.setattr(tracelines, "message_object", fail)
    monkeypatch.setattr(tracelines, "packet_objects", fail)
    monkeypatch.setattr(tracelines, "event_fields", fail)
    client = await world.connect("r", filters=[("a", 1)])
    client.send(p.publish("a", b"x", 1, 7))
    await world.go(0.5)
    assert p.Puback(7) in client.take()


@in_world()
async def test_lines_that_cannot_be_sent_affect_no_actor(world: World) -> None:
    def broken(_subject: str, _data: bytes) -> None:
        raise OSError("no NATS")

    tracer = Tracer(world.broker.node, world.broker.admission, broken)
    tracer.start({"token": TOKEN, "client": "r"})
    client = await world.connect("r")
    client.send(p.publish("a", b"x", 1, 7))
    await world.go(0.5)
    assert p.Puback(7) in client.take()
    tracer.stop({"token": TOKEN})


def test_a_traced_broker_does_what_an_untraced_one_does() -> None:
    def run(*traces: dict[str, str]) -> tuple[list[str], list[bytes]]:
        async def scenario() -> tuple[list[str], list[bytes]]:
            async with World().running() as world:
                tracer, _ = tracing(world)
                for number, wanted in enumerate(traces):
                    tracer.start({"token": TOKEN + str(number), **wanted})
                await talk(world)
                await world.go(2)
                return list(map(repr, world.disk.events())), [
                    b"".join(data for _, data in one) for one in world.transcripts
                ]

        return simulate(scenario)

    untraced = run()
    assert untraced == run({"client": "r"}, {"client": "s"}, {"topic": "#"}, {"actor": "broker:1"})


# The parts.


class ActorObserver:
    """Records the notifications of a kernel."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.sent: list[tuple[LoopActor, Any]] = []

    def begin(self, _actor: LoopActor) -> None:
        self.seen.append("begin")

    def end(self, _actor: LoopActor) -> None:
        self.seen.append("end")

    def sends(self, target: LoopActor, message: Any) -> None:
        self.sent.append((target, message))

    def gets(self, _actor: LoopActor, message: Any) -> None:
        self.seen.append(message)

    def ended(self, actor: LoopActor, error: Exception | None) -> None:
        actor.observer = None
        self.seen.append(error)

    def took(self, actor: LoopActor, packets: object, error: Exception | None) -> None: ...

    def wrote(self, actor: LoopActor, data: bytes) -> None: ...

    def closes(self, actor: LoopActor, reason: str) -> None: ...


class CallingActor(LoopActor):
    """Runs the callables that it gets."""

    def on_receive(self, message: Any) -> None:
        if callable(message):
            message(self)


@pytest.fixture
def turns() -> tuple[Kernel, CallingActor, ActorObserver]:
    kernel, doer, observer = Kernel(lambda _turn: None), CallingActor(), ActorObserver()
    kernel.spawn(doer)
    doer.observer = observer
    return kernel, doer, observer


def test_a_tap_sees_each_message_before_it_is_handled(
    turns: tuple[Kernel, CallingActor, ActorObserver],
) -> None:
    kernel, doer, observer = turns

    def again(actor: LoopActor) -> None:
        observer.seen.append("handled")
        kernel.tell(actor, "grown")

    for message in ("first", again, "last"):
        kernel.tell(doer, message)
    kernel.run_turn()
    assert observer.seen == ["begin", "first", again, "handled", "last", "grown", "end"]
    assert observer.sent == [(doer, "grown")]
    assert kernel.observer is None
    assert doer.handled == 4


def test_a_tap_hears_of_the_end(turns: tuple[Kernel, CallingActor, ActorObserver]) -> None:
    kernel, doer, observer = turns
    doer.stop()
    kernel.run_turn()
    assert observer.seen[-2:] == [None, "end"]
    assert doer.observer is None


def test_a_tap_hears_of_a_failure(turns: tuple[Kernel, CallingActor, ActorObserver]) -> None:
    kernel, doer, observer = turns
    error = ValueError("boom")

    def fail(_actor: LoopActor) -> None:
        raise error

    kernel.tell(doer, fail)
    kernel.run_turn()
    assert observer.seen == ["begin", fail, error, "end"]


@in_world()
async def test_observers_see_all_messages_and_a_failing_one_is_removed(world: World) -> None:
    sender = await world.connect("s")
    told: list[Publication] = []
    failures: list[Publication] = []

    def broken(publication: Publication) -> None:
        failures.append(publication)
        raise RuntimeError("boom")

    observer = SimpleNamespace(published=told.append)
    world.broker.node.add_observer(SimpleNamespace(published=broken))
    world.broker.node.add_observer(observer)
    sender.send(p.publish("a", b"1"), p.publish("b", b"2", 1, 1))
    sender.send(p.publish("c", b"3", 2, 2), p.pubrel(2))
    await world.go(0.5)
    assert [(one.session, one.batch.qos, list(one.batch.topics)) for one in told] == [
        ("s", 0, [b"a"]),
        ("s", 1, [b"b"]),
        ("s", 2, [b"c"]),
    ]
    assert len(failures) == 1
    world.broker.node.remove_observer(observer)
    world.broker.node.remove_observer(observer)
    assert world.broker.node.observers == []
