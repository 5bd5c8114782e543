"""Live traces: their bounds, and their complete removal."""

from types import SimpleNamespace
from typing import Any

import pytest
from harness import packets as p
from simulation.world import World, in_world, simulate
from traces import TOKEN, overrides, talk, tracing

from actors.connection.connection import Connection
from actors.inspection import trace_lines as tracelines
from actors.inspection.inspector import Refused
from actors.inspection.tracer import MAX_TRACES, Tracer
from actors.session.packet_handler import PacketHandler
from actors.session.session_messages import Publication


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
    tracer, sink = tracing(world, client="r")
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
    tracer, _ = tracing(world, client="r")
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

    tracer, _ = tracing(world, client="r")
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


@in_world()
async def test_messages_that_a_session_loads_are_counted(world: World) -> None:
    receiver = await world.connect("r", filters=[("a", 1)])
    receiver.send(p.disconnect())
    sender = await world.connect("s")
    sender.send(p.publish("a", b"1", 1, 1), p.publish("a", b"2", 1, 2))
    await world.go(0.1)
    await world.restart()
    _, sink = tracing(world, client="r")
    again = await world.connect("r", present=True)
    assert again.payloads() == [b"1", b"2"]
    await world.go(0.1)
    loaded = [line for line in sink.lines() if line["what"] == "Loaded"]
    assert [line["message"] for line in loaded if line["kind"] == "gets"] == [{"count": 2}]
