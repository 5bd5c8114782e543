"""An operator's queries and commands to a broker."""

import asyncio
from typing import Any

import pytest
from harness import packets as p
from harness.packets import Connack, Publish
from harness.waiting import happens

from actors.inspection.inspector import PAGE_ROWS, Refused, TooLarge
from actors.session.session import Session
from eventstore.format.events import SessionClosed, SessionExpired, WillFired
from eventstore.format.node_events import OperatorActed, RetainedCleared, WebAccessed
from eventstore.format.positions import position
from simulation.chaos import errors_of_the_broker
from simulation.checking import acknowledged
from simulation.fold import compare
from simulation.inspection import ask, change
from simulation.network import SimClient
from simulation.rebuilding import rebuilt_later
from simulation.world import World, in_world, simulate


def events(world: World, *kinds: type) -> list[Any]:
    return [event for event in world.disk.events() if isinstance(event, kinds)]


@in_world()
async def test_a_kicked_client_is_closed_its_will_published_its_session_kept(world: World) -> None:
    watcher = await world.connect("w", filters=[("wills/#", 1)])
    client = await world.connect(
        "c", filters=[("t", 1)], will=p.Will("wills/c", b"gone", 1, retain=False)
    )
    answer = await change(world, "kick", client="c")
    assert answer["done"] == ["c"]
    await world.go(1)
    assert not client.open
    assert watcher.payloads() == [b"gone"]
    sender = await world.connect("s")
    sender.send(p.publish("t", b"x", 1, 1))
    await world.go(1)
    back = await world.connect("c", present=True)
    await world.go(1)
    assert back.payloads() == [b"x"]
    acted, fired, closed = events(world, OperatorActed, WillFired, SessionClosed)[:3]
    assert acted == OperatorActed("kick", "ann@desk", "c", "c")
    assert (fired, closed.reason) == (WillFired("c"), "kicked")
    compare(world)


@in_world()
async def test_a_kicked_clean_session_is_gone(world: World) -> None:
    await world.connect("c", clean=True, filters=[("t", 1)])
    await change(world, "kick", client="c")
    assert (await ask(world, "sessions"))["rows"] == []
    assert world.broker.node.router.subscriptions == 0
    compare(world)


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("connected", [True, False])
@in_world()
async def test_a_removed_session_starts_empty(
    world: World, *, connected: bool, frozen: bool
) -> None:
    client = await world.connect("c", filters=[("t", 2)])
    sender = await world.connect("s")
    if not connected:
        client.drop()
    sender.send(p.publish("t", b"x", 1, 1))
    await world.go(5 if frozen else 0.1)
    answer = await change(world, "remove_sessions", clients=["c", "nobody"])
    assert answer["done"] == ["c"]
    assert answer["refused"] == [["nobody", "no such session"]]
    await world.go(1)
    assert not client.open
    assert world.broker.node.router.subscriptions == 0
    (gone,) = events(world, SessionExpired)
    assert gone == SessionExpired("c", "removed")
    assert events(world, OperatorActed) == [OperatorActed("remove_session", "ann@desk", "c", "c")]
    back = await world.connect("c", present=False)
    assert back.received == []
    compare(world)
    await world.restart()
    compare(world)


@in_world()
async def test_a_session_that_came_back_is_not_purged(world: World) -> None:
    for name in ("early", "late", "here"):
        client = await world.connect(name)
        if name != "here":
            client.drop()
        await world.go(10)
    before = world.broker.node.state.sessions.peek("early")
    assert before is not None
    answer = await change(
        world,
        "remove_sessions",
        clients=["early", "late", "here"],
        offline_before_ms=before.closed_ms + 5000,
    )
    assert answer["done"] == ["early"]
    assert [name for name, _ in answer["refused"]] == ["late", "here"]


@in_world()
async def test_retained_messages_are_cleared_for_good(world: World) -> None:
    sender = await world.connect("s")
    topics = [f"r/{number}" for number in range(5)]
    sender.send(*(p.publish(one, b"x", 1, n, retain=True) for n, one in enumerate(topics, 1)))
    await world.go(1)
    answer = await change(world, "clear_retained", topics=[*topics[:2], "r/none"])
    assert answer["done"] == topics[:2]
    assert answer["refused"] == [["r/none", "no retained message"]]
    assert events(world, RetainedCleared) == [RetainedCleared(topics[:2])]
    listed = await ask(world, "retained", filter="r/+")
    assert sorted(row["topic"] for row in listed["rows"]) == topics[2:]
    compare(world)
    await world.restart()
    compare(world)
    reader = await world.connect("reader")
    reader.send(p.subscribe(1, ("r/#", 0)))
    await world.go(1)
    got = [packet.topic for packet in reader.take() if isinstance(packet, Publish)]
    assert got == topics[2:]


@in_world(max_ack_pending=3)
async def test_a_restarted_session_keeps_its_deliveries(world: World) -> None:
    await world.connect("c", filters=[("t", 1)])
    sender = await world.connect("s")
    sender.send(*(p.publish("t", b"%d" % n, 1, n) for n in range(1, 8)))
    await world.go(1)
    (row,) = (await ask(world, "actors", type="session", client="c"))["rows"]
    answer = await change(world, "restart", actor=row["id"])
    assert answer["done"] == [row["id"]]
    await world.go(2)
    back = await world.connect("c", present=True)
    got = await acknowledged(world, back)
    assert got == [b"%d" % n for n in range(1, 8)]
    (acted,) = events(world, OperatorActed)
    assert acted == OperatorActed("restart", "ann@desk", row["id"], "c")
    compare(world)


def test_a_client_that_came_while_its_session_was_restarted_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        may_rebuild = rebuilt_later(monkeypatch)
        async with World().running() as world:
            await world.connect("c")
            await change(world, "restart", actor=world.broker.sessions.session("c").actor_urn)
            back = SimClient(world)
            back.send(p.connect("c", clean=False))
            await world.go(1)
            assert not back.take()
            may_rebuild.set()
            await world.go(1)
            assert back.take() == [Connack(0, session_present=True)]
            assert (await ask(world, "status"))["sessions"]["connected"] == 1
            back.drop()
            await world.go(1)
            assert (await ask(world, "status"))["sessions"]["connected"] == 0

    simulate(scenario)


@in_world()
async def test_a_restarted_subscription_continues(world: World) -> None:
    client = await world.connect("c", filters=[("t", 1)])
    (row,) = (await ask(world, "actors", type="subscription"))["rows"]
    await change(world, "restart", actor=row["id"])
    (fresh,) = (await ask(world, "actors", type="subscription"))["rows"]
    assert fresh["id"] != row["id"]
    sender = await world.connect("s")
    sender.send(p.publish("t", b"x", 1, 1))
    await world.go(1)
    assert client.payloads() == [b"x"]


@in_world()
async def test_a_change_is_answered_when_it_is_on_disk(world: World) -> None:
    await world.connect("c")
    world.log.hold()
    asking = asyncio.ensure_future(change(world, "kick", client="c"))
    await world.go(3)
    assert not asking.done()
    # Requests without changes do not wait.
    assert (await ask(world, "sessions"))["rows"][0]["connected"] is False
    world.log.release()
    answer = await asking
    assert answer["position"] in range(1 << 60)
    assert events(world, OperatorActed)


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"do": "explode", "by": "x"},
        {"do": "kick", "client": "c"},
        {"do": "kick", "client": "c", "by": ""},
        {"do": "kick", "client": "c", "by": "x" * 300},
        {"do": "kick", "client": "nobody", "by": "x"},
        {"do": "kick", "client": 5, "by": "x"},
        {"do": "kick", "client": "offline", "by": "x"},
        {"do": "kick", "actor": "subscription:99", "by": "x"},
        {"do": "kick", "actor": "broker:1", "by": "x"},
        {"do": "restart", "actor": "nothing:7", "by": "x"},
        {"do": "restart", "by": "x"},
        {"do": "remove_sessions", "clients": "c", "by": "x"},
        {"do": "remove_sessions", "clients": ["c"] * 501, "by": "x"},
        {"do": "remove_sessions", "clients": [7], "by": "x"},
        {"do": "remove_sessions", "clients": ["c"], "offline_before_ms": -1, "by": "x"},
        {"do": "clear_retained", "by": "x"},
    ],
    ids=repr,
)
@in_world()
async def test_invalid_changes_are_refused(world: World, request_: dict[str, Any]) -> None:
    await world.connect("c")
    (await world.connect("offline")).drop()
    await world.go(1)
    before = len(world.disk.events())
    with pytest.raises(Refused):
        await ask(world, "change", **request_)
    await world.go(1)
    assert len(world.disk.events()) == before


@pytest.mark.parametrize("kind", ["broker", "inspector", "connection"])
@in_world()
async def test_actors_that_cannot_be_restarted(world: World, kind: str) -> None:
    client = await world.connect("c")
    (row,) = (await ask(world, "actors", type=kind))["rows"]
    with pytest.raises(Refused):
        await change(world, "restart", actor=row["id"])
    client.send(p.pingreq())
    await world.go(1)
    assert client.take() == [p.Pingresp()]


@in_world(max_sessions=5000)
async def test_lists_come_in_pages_that_together_have_everything_once(world: World) -> None:
    names = {f"c{number:04}" for number in range(2 * PAGE_ROWS + 7)}
    for name in sorted(names):
        client = SimClient(world)
        client.send(p.connect(name, clean=False))
        if name[-1] == "7":
            client.send(p.subscribe(1, ("t", 1)))
    await world.go(1)
    for client in list(world.clients)[::2]:
        client.drop()
    await world.go(5)  # half of them are frozen now
    page = await ask(world, "sessions")
    assert page["total"] == len(names)
    rows = list(page["rows"])
    while page["more"]:
        assert len(page["rows"]) <= PAGE_ROWS
        page = await ask(world, "page", cursor=page["cursor"])
        rows += page["rows"]
    assert page["cursor"] is None
    assert sorted(row["session"] for row in rows) == sorted(names)
    frozen = sum(row["frozen"] for row in rows)
    assert frozen == -(-len(names) // 2)
    assert len(world.broker.node.state.sessions.live) == len(names) - frozen
    found = await ask(world, "sessions", match="c00?7", connected=False)
    expected = [name for number, name in enumerate(sorted(names)) if number % 2 == 0]
    assert sorted(row["session"] for row in found["rows"]) == [
        name for name in expected if name[:3] == "c00" and name[-1] == "7"
    ]


@in_world(max_sessions=5000)
async def test_a_cursor_is_valid_for_one_page(world: World) -> None:
    for number in range(PAGE_ROWS + 1):
        SimClient(world).send(p.connect(f"c{number}", clean=False))
    await world.go(1)
    page = await ask(world, "sessions")
    last = await ask(world, "page", cursor=page["cursor"])
    assert len(last["rows"]) == 1
    for cursor in (page["cursor"], "no such thing", None):
        with pytest.raises(Refused):
            await ask(world, "page", cursor=cursor)


@in_world()
async def test_the_highest_are_the_highest(world: World) -> None:
    sender = await world.connect("s")
    for number in range(30):
        client = await world.connect(f"c{number}", filters=[(f"t/{number}", 1)])
        client.drop()
    await world.go(1)
    pid = 0
    for number in range(30):
        for _ in range(number % 7):
            pid += 1
            sender.send(p.publish(f"t/{number}", b"x", 1, pid))
    await world.go(5)
    found = await ask(world, "sessions", top={"by": "queued", "count": 9})
    assert [row["queued"] for row in found["rows"]] == [6, 6, 6, 6, 5, 5, 5, 5, 4]
    busy = await ask(world, "actors", top={"by": "handled", "count": 5})
    handled = [row["handled"] for row in busy["rows"]]
    assert handled == sorted(handled, reverse=True)
    assert handled[0] == max(actor.handled for actor in world.broker.kernel)


@in_world(max_ack_pending=2)
async def test_the_census_counts_live_and_frozen_sessions(world: World) -> None:
    sender = await world.connect("s")
    for number in range(6):
        client = await world.connect(f"c{number}", filters=[("t", 2)])
        if number % 2:
            client.drop()
    await world.go(1)
    sender.send(*(p.publish("t", b"abc", 2, n) for n in range(1, 6)))
    sender.send(*(p.pubrel(n) for n in range(1, 5)))
    await world.go(5)
    census = (await ask(world, "status"))["census"]
    states = list(world.broker.node.state.sessions.values())
    assert any(name not in world.broker.node.state.sessions.live for name in ("c1", "c3", "c5"))
    assert census["queued"] == sum(state.queued for state in states) > 0
    assert census["queued_bytes"] == 3 * census["queued"]
    assert census["in_flight"] == sum(len(state.inflight) for state in states) == 6
    assert census["inbound"] == sum(len(state.inbound) for state in states) == 1
    assert census["releasing"] == 0


@in_world()
async def test_the_parts_of_the_memory_add_up_to_the_resident_memory(world: World) -> None:
    empty = (await ask(world, "status"))["memory"]
    sender = await world.connect("s", filters=[("t/#", 1)])
    for number in range(1, 6):
        sender.send(p.publish(f"t/{number}", bytes(100_000), 1, number, retain=True))
    await world.go(5)
    found = await ask(world, "status")
    memory = found["memory"]
    assert sum(memory.values()) == pytest.approx(found["process"]["rss"], rel=0.05)
    assert memory["retained"] > empty["retained"] + 500_000
    assert memory["messages"] > empty["messages"] + 500_000
    for part in ("connections", "sessions", "subscriptions", "routes"):
        assert memory[part] > empty[part], part


@in_world()
async def test_receivers_of_a_message_and_reasons(world: World) -> None:
    await world.connect("here", filters=[("a/#", 0), ("a/b", 2), ("other", 1)])
    for name, qos in (("away", 1), ("away0", 0)):
        client = await world.connect(name, filters=[("a/+", qos)])
        client.drop()
    await world.go(5)
    frozen = set(world.broker.node.state.sessions) - set(world.broker.node.state.sessions.live)
    answer = await ask(world, "subscriptions", topic="a/b")
    assert {(row["client"], row["filter"], row["why"]) for row in answer["rows"]} == {
        ("here", "a/#", "overlapped"),
        ("here", "a/b", "sent"),
        ("away", "a/+", "queued"),
        ("away0", "a/+", "offline_qos0"),
    }
    assert answer["retained"] is None
    # To look is not to wake.
    assert frozen == {"away", "away0"}
    assert frozen.isdisjoint(world.broker.node.state.sessions.live)
    with pytest.raises(Refused):
        await ask(world, "subscriptions", topic="a/#")


@in_world(max_ack_pending=2)
async def test_a_session_is_shown_as_it_is(world: World) -> None:
    will = p.Will("wills/c", b"gone", 1, retain=True)
    client = await world.connect("c", filters=[("t/#", 2), ("u", 1)], will=will)
    sender = await world.connect("s")
    sender.send(*(p.publish("t/1", b"abc", 1, n) for n in range(1, 6)))
    client.send(p.publish("v", b"q2", 2, 77))
    await world.go(1)
    shown = await ask(world, "session", client="c")
    assert shown["connected"]
    assert shown["will"]["topic"] == "wills/c"
    assert [row["filter"] for row in shown["subscriptions"]["rows"]] == ["t/#", "u"]
    (held, _) = shown["subscriptions"]["rows"]
    assert (held["outstanding"], held["window"], held["queued"]) == (2, 2, 3)
    assert [(row["packet_id"], row["topic"]) for row in shown["in_flight"]["rows"]] == [
        (1, "t/1"),
        (2, "t/1"),
    ]
    (inbound,) = shown["inbound"]["rows"]
    assert (inbound["packet_id"], inbound["topic"]) == (77, "v")
    assert shown["oldest"]["topic"] == "t/1"
    assert shown["queued"] == 3
    assert shown["connection"]["messages_out"] == 2
    rest = await ask(world, "session", client="c", offset=1, most=1)
    assert [row["packet_id"] for row in rest["in_flight"]["rows"]] == [2]
    assert rest["in_flight"]["total"] == 2
    for row in shown["actors"]:
        detail = await ask(world, "actor", id=row["id"])
        assert detail["actor"]["client"] == "c"
        assert detail["detail"]
    with pytest.raises(Refused):
        await ask(world, "session", client="nobody")


@in_world()
async def test_a_shared_subscription_is_shown_with_its_members(world: World) -> None:
    group = "$share/g/t"
    await world.connect("ann", filters=[(group, 1)])
    (await world.connect("bob", filters=[(group, 2)])).drop()
    sender = await world.connect("s")
    sender.send(p.publish("t", b"x", 1, 1, retain=True))
    await world.go(0.5)
    shown = await ask(world, "session", client=group)
    detail = await ask(world, "actor", id=shown["actor"])
    assert detail["actor"]["type"] == "sharedsession"
    assert detail["detail"]["session"] == group
    members = [
        (row["session"], row["connected"], row["qos"], row["outstanding"])
        for row in shown["members"]["rows"]
    ]
    assert members == [("ann", True, 1, 1), ("bob", False, 2, 0)]
    (row,) = (await ask(world, "sessions", match=group))["rows"]
    assert row["members"] == 2
    (receiver,) = (await ask(world, "subscriptions", topic="t"))["rows"]
    assert (receiver["why"], receiver["online"], receiver["members"]) == ("shared", 1, 2)
    assert (await ask(world, "session", client="ann"))["members"] is None


@pytest.mark.parametrize(
    ("endpoint", "request_"),
    [
        ("nothing", {}),
        ("actors", {"top": {"by": "beauty"}}),
        ("actors", {"top": {"by": "busy", "count": 501}}),
        ("actors", {"match": 7}),
        ("actor", {"id": "session:99999"}),
        ("actor", {"id": "session:x"}),
        ("actor", {}),
        ("sessions", {"connected": "yes"}),
        ("sessions", {"offline_s": True}),
        ("session", {"client": "c", "most": 1001}),
        ("session", {"client": "c", "offset": -1}),
        ("retained", {"filter": "a/#/b"}),
        ("retained.get", {"topic": "none"}),
        ("subscriptions", {"topic": ""}),
        ("status", {"topics": 1}),
    ],
)
@in_world()
async def test_bad_questions_get_a_sentence(
    world: World, endpoint: str, request_: dict[str, Any]
) -> None:
    await world.connect("c")
    with pytest.raises(Refused) as refused:
        await ask(world, endpoint, **request_)
    assert "\n" not in str(refused.value)
    assert (await ask(world, "sessions"))["total"] == 1


@in_world()
async def test_counters_count_what_clients_send_and_get(world: World) -> None:
    receiver = await world.connect("r", filters=[("t", 2)])
    sender = await world.connect("s")
    before = await ask(world, "status")
    sent = [p.publish("t", b"x", 0), p.publish("t", b"x", 1, 1), p.publish("t", b"x", 2, 2)]
    sender.send(*sent, p.pubrel(2))
    await world.go(1)
    got = receiver.take()
    receiver.send(p.puback(1), p.pubrec(2))
    await world.go(1)
    after = await ask(world, "status")
    assert len(got) == 3
    for way in ("in", "out"):
        counted = zip(after["messages"][way], before["messages"][way], strict=True)
        assert [now - then for now, then in counted] == [1, 1, 1]
    size = sum(map(len, sent))
    assert after["publish_bytes"]["in"] - before["publish_bytes"]["in"] == size
    # 3 PUBLISH, PUBREL, PUBACK and PUBREC came; 3 PUBLISH, PUBACK, PUBREC, PUBCOMP and
    # the PUBREL to the receiver went.
    assert after["packets"]["in"] - before["packets"]["in"] == 6
    assert after["packets"]["out"] - before["packets"]["out"] == 7
    assert after["connections"]["open"] == 2
    assert after["sessions"]["connected"] == 2
    assert Connack(0) not in got


@in_world()
async def test_busiest_topics_are_counted_only_while_requested(world: World) -> None:
    sender = await world.connect("s")
    assert not world.broker.node.observers
    assert (await ask(world, "status", topics=True))["topics"] == []
    for number in range(1, 31):
        sender.send(p.publish("busy" if number % 3 else "quiet", b"x", 1, number))
        await world.go(0.1)
    topics = dict((await ask(world, "status", topics=True))["topics"])
    assert topics["busy"] == pytest.approx(2 * topics["quiet"], rel=0.05)
    await world.go(30)
    assert not world.broker.node.observers


@in_world()
async def test_topics_without_a_subscription(world: World) -> None:
    sender = await world.connect("s")
    away = await world.connect("c", filters=[("heard/#", 1)])
    member = await world.connect("m", filters=[("$share/g/shared", 0)])
    away.drop()
    assert (await ask(world, "topics"))["rows"] == []
    sent = ("heard/a", "shared", "alone", "kept", "alone")
    sender.send(*(p.publish(topic, b"x", 0, retain=topic == "kept") for topic in sent))
    await world.go(5)
    reply = await ask(world, "topics", unheard=True)
    assert [(row["topic"], row["count"], row["retained"]) for row in reply["rows"]] == [
        ("alone", 2, False),
        ("kept", 1, True),
    ]
    assert reply["complete"]
    assert reply["seconds"] == pytest.approx(5, abs=1)
    heard = {row["topic"] for row in (await ask(world, "topics"))["rows"] if row["heard"]}
    assert heard == {"heard/a", "shared"}
    member.drop()
    await world.go(100)
    assert not world.broker.node.observers


@in_world()
async def test_too_many_topics_to_count(world: World) -> None:
    sender = await world.connect("s")
    await ask(world, "topics")
    for number in range(5000):
        sender.send(p.publish(f"t/{number}", b"x", 0))
        if number % 500 == 0:
            await world.go(0.1)
    await world.go(1)
    reply = await ask(world, "topics", unheard=True)
    assert not reply["complete"]
    assert reply["total"] <= 4096


async def reading(world: World) -> tuple[SimClient, Session]:
    """Return a client that came back, and its session, which reads what waits from the log."""
    client = await world.connect("c", filters=[("t", 1)])
    client.drop()
    sender = await world.connect("s")
    sender.send(*(p.publish("t", b"%d" % n, 1, n) for n in range(1, 10)))
    await world.go(5)
    await world.restart()  # nothing is at hand now
    world.faults.travel = lambda: 0.5
    back = SimClient(world)
    back.send(p.connect("c", clean=False))
    await world.calm()
    session = world.broker.sessions.find_session("c")
    assert session is not None
    await happens(lambda: session.loading)
    return back, session


@pytest.mark.parametrize("do", ["kick", "remove_sessions"])
@in_world(message_cache=1)
async def test_changes_that_wait_for_the_log_are_answered_afterwards(world: World, do: str) -> None:
    """A session that reads messages from the log puts off what an operator wants of it."""
    _, session = await reading(world)
    request = {"client": "c"} if do == "kick" else {"clients": ["c"]}
    asking = asyncio.ensure_future(change(world, do, **request))
    await world.calm()
    assert session.loading
    assert not asking.done()
    assert not events(world, OperatorActed)
    answer = await asking
    assert answer["done"] == ["c"]
    # What was answered is in the log, with all that it led to.
    told = world.disk.events()
    (acted,) = events(world, OperatorActed)
    rest = told[told.index(acted) :]
    assert any(isinstance(one, SessionClosed) for one in rest)
    assert any(isinstance(one, SessionExpired) for one in rest) is (do != "kick")
    await world.restart()
    compare(world)
    assert ("c" in world.broker.node.state.sessions) is (do == "kick")


@in_world(message_cache=1)
async def test_an_order_to_a_session_that_fails_is_carried_out_by_its_successor(
    world: World,
) -> None:
    _, session = await reading(world)
    asking = asyncio.ensure_future(change(world, "remove_sessions", clients=["c"]))
    await world.calm()
    world.broker.kernel.restart(session)
    answer = await asking
    assert answer["done"] == ["c"]
    assert "c" not in world.broker.node.state.sessions
    assert world.broker.inspection.inspector.endpoints


@pytest.mark.parametrize("pattern", ["[" * 300, "*a" * 17, "a" * 257])
@in_world()
async def test_patterns_that_cost_too_much_are_refused(world: World, pattern: str) -> None:
    for endpoint in ("actors", "sessions"):
        with pytest.raises(Refused):
            await ask(world, endpoint, match=pattern)


@in_world()
async def test_an_answer_with_too_long_names_is_refused_before_it_is_made(world: World) -> None:
    client = await world.connect("c")
    for number in range(20):
        client.send(p.subscribe(1, (f"{number}/" + "x" * 60_000, 1)))
    await world.go(1)
    with pytest.raises(TooLarge):
        await ask(world, "session", client="c")
    found = await ask(world, "session", client="c", most=2)
    assert found["subscriptions"]["total"] == 20
    assert len(found["subscriptions"]["rows"]) == 2


@in_world(max_ack_pending=1)
async def test_the_topics_of_waiting_messages_count_in_an_answer(world: World) -> None:
    filters = [(f"+/{number}/#", 1) for number in range(20)]
    await world.connect("c", filters=filters)
    sender = await world.connect("s")
    for number in range(20):
        for last, packet_id in (("in flight", 1), ("x" * 60_000, 2)):
            topic = f"a/{number}/{last}"
            sender.send(p.publish(topic, b"", 1, 2 * number + packet_id))
    await world.go(2)
    shown = await ask(world, "session", client="c", most=2)
    assert [row["queued"] for row in shown["subscriptions"]["rows"]] == [1, 1]
    with pytest.raises(TooLarge):
        await ask(world, "session", client="c")


@in_world()
async def test_the_position_of_an_answer_is_that_of_the_last_event(world: World) -> None:
    await world.connect("c", filters=[("t", 1)])
    await world.go(1)
    last = world.disk.decoded()[-1]
    *_, (index, _) = last.events()
    expected = position(last.sequence, index)
    assert (await ask(world, "session", client="c"))["position"] == expected
    assert (await ask(world, "status"))["position"] == expected


def test_a_subscription_that_fails_while_its_session_reads_does_not_take_it_along() -> None:
    async def scenario() -> None:
        async with World(message_cache=1).running() as world:
            back, session = await reading(world)
            (subscriber,) = world.broker.node.router.subscribers("c")
            assert subscriber.actor is not None
            back.drop()
            await world.calm()
            assert session.loading
            world.broker.kernel.restart(subscriber.actor)
            await happens(lambda: session.connection is None)
            await world.go(2)
            world.faults.travel = lambda: 0.0
            again = await world.connect("c", present=True)
            got = await acknowledged(world, again)
            assert got == [b"%d" % n for n in range(1, 10)]

    with errors_of_the_broker() as errors:
        simulate(scenario)
    assert errors == []


# ------------------------------------------------------------------ logins at the web page


@in_world()
async def test_logins_at_the_web_page_are_recorded(world: World) -> None:
    login = {"address": "127.0.0.1", "name": "ann", "role": "view", "reason": ""}
    answer = await change(world, "web_accessed", outcome="login", first_ms=7, **login)
    refusal = {**login, "name": "", "role": "", "reason": "wrong_token"}
    await change(world, "web_accessed", outcome="refused", count=3, first_ms=8, **refusal)
    token = {**login, "address": "", "expires": "never"}
    await change(world, "web_accessed", outcome="token_added", count=1, first_ms=9, **token)
    assert events(world, WebAccessed) == [
        WebAccessed("login", "127.0.0.1", "ann", "view", "", 1, 7),
        WebAccessed("refused", "127.0.0.1", "", "", "wrong_token", 3, 8),
        WebAccessed("token_added", "", "ann", "view", "", 1, 9, "never"),
    ]
    assert answer["position"] is not None
    compare(world)
    await world.restart()
    compare(world)


@pytest.mark.parametrize(
    ("more", "wrong"),
    [
        ({"outcome": "other"}, "outcome must be one of login, refused, denied, token_added"),
        ({"address": "x" * 200}, "address must have at most"),
        ({"name": "x" * 65}, "name must have at most"),
        ({"reason": 7}, "reason must be text"),
        ({"expires": "x" * 33}, "expires must have at most"),
        ({"count": -1}, "count must be a whole number"),
        ({"first_ms": 1 << 60}, "first_ms must be a whole number"),
    ],
)
@in_world()
async def test_reports_of_the_web_page_are_validated(
    world: World, more: dict[str, Any], wrong: str
) -> None:
    fields = {"outcome": "login", "address": "", "name": "", "role": "", "reason": ""}
    with pytest.raises(Refused, match=wrong):
        await change(world, "web_accessed", **{**fields, **more})
    assert not events(world, WebAccessed)


@in_world()
async def test_status_measures_the_log_on_request(world: World) -> None:
    ask = world.broker.inspection.inspector.ask_for
    before = (await ask("status"))["log"]["stream_bytes"]
    client = await world.connect("c")
    client.send(p.publish("t", b"x" * 1000, 1, 1))
    await world.go(60)
    found = (await ask("status"))["log"]["stream_bytes"]
    assert found == await world.broker.node.log.size() > before + 1000
