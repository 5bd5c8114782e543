"""Live traces: their content."""

import base64
from typing import NamedTuple

import orjson
from harness import packets as p
from simulation.world import SimClient, World, in_world
from traces import TOKEN, logged, overrides, talk, tracing

from actors.inspection import trace_lines as tracelines
from actors.session.session_messages import ConnectionDetached, Retry
from eventstore.format.events import RetainedExpired
from eventstore.format.positions import position
from projections.past.event_object import event_object

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
    _, sink = tracing(world, client="r")
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
    _, sink = tracing(world, client="r")
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
    _, sink = tracing(world, client="r")
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
    _, sink = tracing(world, client="r")
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
    urn = next(iter(world.broker.admission.connections)).actor_urn
    tracer, sink = tracing(world, actor=urn)
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
    session = world.broker.sessions.find_session("r")
    assert session is not None
    _, sink = tracing(world, actor=session.actor_urn)
    world.log.hold()
    client.send(p.publish("a", b"x", 1, 7))
    await world.go(0.5)
    puback, publish = sink.lines(kind="sends", to_client="r")[-2:]
    assert (puback["what"], puback["packet"]["packet_ids"]) == ("PUBACK", [7])
    assert publish["what"] == "PUBLISH"
    assert sink.lines(kind="gets", what="PUBLISH")[0]["packet"]["packet_id"] == 7
    assert [kind for kind, _ in sink.kinds()][:2] == ["gets", "event"]  # before it is handled
    assert not sink.lines(kind="packet_out")
    world.log.release()


@in_world()
async def test_a_message_to_many_is_one_line(world: World) -> None:
    for number in range(30):
        await world.connect(f"r{number}", filters=[("a", 0)])
    sender = await world.connect("s")
    _, sink = tracing(world, client="s")
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
    _, sink = tracing(world, topic="hall/#")
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
    _, sink = tracing(world, topic="cmd/x")
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
    _, sink = tracing(world, topic="yes/+")
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
    _, sink = tracing(world, topic="a")
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
    _, sink = tracing(world, topic="a")
    world.broker.node.emit(RetainedExpired(["a", "b"]))
    await world.go(0.5)
    (line,) = sink.lines(kind="event")
    assert (line["what"], line["event"]["topics"]) == ("RetainedExpired", ["a"])


@in_world()
async def test_a_topic_without_publications_has_no_lines(world: World) -> None:
    _, sink = tracing(world, topic="quiet/#")
    await talk(world)
    assert sink.sent == []
