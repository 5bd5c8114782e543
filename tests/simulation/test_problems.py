"""The problems of clients that do not complete deliveries, as ``foldmq doctor`` finds them."""

from itertools import chain
from typing import Any

import pytest
from harness import mqtt5_packets as p5
from harness import packets as p

from actors.inspection.problems import ProblemSearch
from actors.inspection.receiver_preview import Previewed, receiver_rows
from simulation.bridged_clients import Client5
from simulation.network import SimClient
from simulation.world import World, in_world


def problems(world: World, client: str | None = "c") -> dict[str, dict[str, Any]]:
    """Return the problems of the client ``c`` by their code; with None, search for all clients."""
    search = ProblemSearch(world.broker.node, client)
    assert all(pause is None for pause in search.run())
    found = [one for one in search.answer()["problems"] if one["client"] == "c"]
    assert len({one["code"] for one in found}) == len(found)
    return {one["code"]: one for one in found}


def refusals(world: World, client: str | None) -> list[dict[str, Any]]:
    search = ProblemSearch(world.broker.node, client)
    found: list[dict[str, Any]] = search.answer()["refusals"]
    return found


def codes(world: World) -> set[str]:
    return set(problems(world))


async def receives(world: World, count: int, qos: int = 1, **about: Any) -> SimClient:
    """A client that has got messages, one after the other."""
    client = await world.connect("c", filters=[("a", qos)], **about)
    writer = await world.connect("w")
    for number in range(count):
        writer.send(p.publish("a", b"x", qos, number + 1))
        if qos == 2:
            writer.send(p.pubrel(number + 1))
    await world.go(1)
    return client


@in_world(ack_wait=30.0)
async def test_a_release_that_is_sent_again_and_again_is_found(world: World) -> None:
    client = await receives(world, 1, 2)
    client.send(p.pubrec(1))
    await world.go(25)
    assert codes(world) == set()
    for seconds in range(32, 130, 7):
        await world.go(7)
        found = problems(world)
        assert set(found) == {"stuck_release"}, seconds
        (one,) = found.values()
        assert (seconds - 1) * 1000 <= one["age_ms"] <= (seconds + 2) * 1000
        assert not one["resumed"]
    client.send(p.pubcomp(1))
    await world.go(1)
    assert codes(world) == set()


@pytest.mark.parametrize(("qos", "released"), [(1, 0), (2, 0), (2, 1), (2, 3)])
@in_world(ack_wait=30.0, max_ack_pending=3)
async def test_a_window_that_stays_full_is_found_all_the_time(
    world: World, qos: int, released: int
) -> None:
    client = await receives(world, 5, qos)
    client.send(*[p.pubrec(pid) for pid in range(1, released + 1)])
    await world.go(8)
    assert codes(world) == set()
    await world.go(1)
    for seconds in range(17, 130, 7):
        await world.go(7)
        one = problems(world)["window_full"]
        assert (seconds - 1) * 1000 <= one["age_ms"] <= (seconds + 2) * 1000
        assert (one["outstanding"], one["window"], one["queued"]) == (3, 3, 2)


@in_world(ack_wait=30.0, max_ack_pending=2)
async def test_the_age_is_that_of_the_oldest_delivery_left(world: World) -> None:
    client = await receives(world, 4)
    await world.go(70)
    client.send(p.puback(1), p.puback(2))
    await world.go(5)
    assert codes(world) == set()  # the two that waited were sent just now
    await world.go(60)
    assert 60_000 <= problems(world)["window_full"]["age_ms"] <= 67_000
    client.send(p.puback(3))
    await world.go(1)
    assert codes(world) == {"slow_acks"}  # it acknowledges, and the window is not full


@in_world(ack_wait=30.0, max_ack_pending=20)
async def test_a_client_that_acknowledges_slowly_is_no_problem(world: World) -> None:
    client = await receives(world, 40)
    found: list[set[str]] = []
    for pid in range(1, 13):
        await world.go(5)
        client.send(p.puback(pid))
        await world.go(1)
        found.append(codes(world))
    assert found[:4] == [set()] * 4  # its window is full all the time
    assert found[6:] == [{"slow_acks"}] * 6
    await world.go(40)
    assert codes(world) == {"window_full"}
    client.send(*[p.puback(pid) for pid in range(13, 16)])
    await world.go(40)
    assert codes(world) == {"window_full"}


@in_world(ack_wait=30.0, max_ack_pending=2)
async def test_a_new_connection_resets_the_age(world: World) -> None:
    client = await receives(world, 3)
    await world.go(100)
    assert not problems(world)["window_full"]["resumed"]
    client.drop()
    await world.go(500)
    assert codes(world) == set()
    await world.connect("c", present=True)
    await world.go(5)
    assert codes(world) == set()
    await world.go(60)
    one = problems(world)["window_full"]
    assert 60_000 <= one["age_ms"] <= 67_000
    assert one["resumed"]
    await world.restart()
    await world.connect("c", present=True)
    await world.go(40)
    one = problems(world)["window_full"]
    assert 39_000 <= one["age_ms"] <= 42_000
    assert one["resumed"]


@pytest.mark.parametrize(("qos", "code"), [(1, "unacknowledged"), (2, "stuck_release")])
@in_world(ack_wait=30.0)
async def test_a_client_that_reconnects_and_never_acknowledges_is_found(
    world: World, qos: int, code: str
) -> None:
    client = await receives(world, 1, qos)
    if qos == 2:
        client.send(p.pubrec(1))
    await world.go(24)
    assert codes(world) == set()
    client.drop()
    await world.go(500)
    client = await world.connect("c", present=True)
    await world.go(8)
    assert codes(world) == set()  # it has some time to answer
    await world.go(5)
    one = problems(world)[code]
    assert (one["connections"], one["resumed"]) == (2, True)
    assert 36_000 <= one["age_ms"] <= 39_000  # the time away does not count
    client.drop()
    client = await world.connect("c", present=True)
    await world.go(1)
    assert problems(world)[code]["connections"] == 3  # it had its chance twice
    client.send(p.puback(1) if qos == 1 else p.pubcomp(1))
    await world.go(1)
    assert codes(world) == set()
    client.drop()
    await world.connect("c", present=True)
    await receives(world, 1, qos)
    await world.go(20)
    assert codes(world) == set()


@in_world(ack_wait=30.0)
async def test_a_member_of_a_share_that_reconnects_and_never_acknowledges_is_found(
    world: World,
) -> None:
    share = "$share/g/a"
    client = await world.connect("c", filters=[(share, 1)])
    writer = await world.connect("w")
    for number in range(1, 4):
        writer.send(p.publish("a", b"x", 1, number))
        await world.go(24)
        assert codes(world) == ({"unacknowledged"} if number > 1 else set())
        client.send(p.disconnect())
        client.drop()
        client = await world.connect("c", present=True)
    await world.go(1)
    one = problems(world)["unacknowledged"]
    assert (one["connections"], set(one["filters"])) == (4, {share})
    assert one["age_ms"] >= 72_000
    (row,) = receiver_rows(share, [("a", 1, True)], Previewed("a", 1, None), world.broker.node)
    assert [member["connections"] for member in row["stalled"]] == [4]
    client.send(
        *(
            p.puback(packet.packet_id or 0)
            for packet in client.received
            if isinstance(packet, p.Publish)
        )
    )
    await world.go(1)
    assert codes(world) == set()


@in_world(ack_wait=30.0)
async def test_the_oldest_delivery_that_no_connection_acknowledges_is_found(world: World) -> None:
    client = await receives(world, 2)
    for seconds in (24, 24):
        client.send(p.puback(2))
        await world.go(seconds)
        client.drop()
        client = await world.connect("c", present=True)
        writer = await world.connect("w")
        writer.send(p.publish("a", b"x", 1, 1))
        await world.go(1)
    client.send(p.puback(2), p.puback(3))
    await world.go(1)
    one = problems(world)["slow_acks"]
    assert one["connections"] == 3
    assert one["age_ms"] >= 48_000


@pytest.mark.parametrize("restarted", [False, True])
@in_world(max_queued_messages=5)
async def test_a_full_queue_of_a_frozen_session_is_found(world: World, restarted: bool) -> None:
    client = await receives(world, 0)
    idle = await world.connect("idle", filters=[("b", 1)])
    client.send(p.disconnect())
    idle.send(p.disconnect())
    writer = await world.connect("writer")
    writer.send(*[p.publish("a", b"x", 1, number) for number in range(1, 6)])
    await world.go(100)
    if restarted:
        await world.restart()
        await world.go(1)
    sessions = world.broker.node.state.sessions
    assert sessions.frozen("c") is not None
    assert sessions.frozen("idle") is not None
    one = problems(world, None)["queue_full"]
    assert (one["queued"], one["connected"]) == (5, False)
    assert {*chain.from_iterable(sessions.parts_with_messages())} >= {"c"}
    assert "idle" not in {*chain.from_iterable(sessions.parts_with_messages())}
    assert sessions.frozen("c") is not None  # looking leaves it frozen


@in_world()
async def test_a_publication_without_a_release_is_found_in_a_frozen_session(world: World) -> None:
    client = await receives(world, 0)
    client.send(p.publish("b", b"x", 2, 1))
    await world.go(1)
    client.drop()
    await world.go(100)
    assert world.broker.node.state.sessions.frozen("c") is not None
    assert problems(world, None)["stuck_publish"]["count"] == 1


@in_world()
async def test_a_protocol_error_is_reported_for_an_hour(world: World) -> None:
    client = await world.connect("c")
    client.send(b"\x00\x00")
    await world.go(60)
    (one,) = refusals(world, None)
    assert (one["reason"], one["count"], one["recent"]) == ("protocol_error", 1, 1)
    assert (one["client"], one["address"][:9]) == ("c", "192.0.2.1")
    assert 55_000 <= one["age_ms"] <= 65_000
    assert one["error"]
    assert refusals(world, "c") == [one]
    assert refusals(world, "other") == []
    await world.go(3_600)
    assert refusals(world, None) == []


@in_world()
async def test_takeovers_count_for_ten_minutes(world: World) -> None:
    for _ in range(3):
        await world.connect("c")
        await world.go(250)
    client = await world.connect("c")
    await world.go(1)
    one = problems(world)["duplicate"]
    assert (one["takeovers"], one["recent_takeovers"]) == (3, 3)
    assert one["hosts"] == ["192.0.2.1"]
    assert one["lasts"]
    client.drop()
    await world.go(1)
    assert not problems(world)["duplicate"]["lasts"]  # both have ended
    await world.go(360)  # the first one was 11 minutes ago
    assert codes(world) == set()


@pytest.mark.parametrize("level", [4, 5])
@pytest.mark.parametrize("topic_filter", ["a", "$share/g/a"])
@pytest.mark.parametrize("qos", [1, 2])
@in_world(ack_wait=20.0)
async def test_a_client_that_does_not_acknowledge_is_found_though_its_window_has_room(
    world: World, qos: int, topic_filter: str, level: int
) -> None:
    """After ``ack_wait`` and the time for an answer, until it acknowledges."""
    client = await world.connect("c", filters=[(topic_filter, qos)], mqtt5=level == 5)
    writer = await world.connect("w")
    writer.send(p.publish("a", b"x", qos, 1))
    if qos == 2:
        writer.send(p.pubrel(1))
    await world.go(15)
    assert codes(world) == set()
    for _ in range(5):
        await world.go(7)
        one = problems(world)["unacknowledged"]
        assert (one["count"], one["filters"]) == (1, {topic_filter: 1})
        assert one["sent_again"] == (level == 4)
    client.send(p.puback(1) if qos == 1 else p.pubrec(1))
    await world.go(1)
    assert codes(world) == set()


@in_world()
async def test_two_clients_of_one_identifier_that_have_ended_are_past(world: World) -> None:
    for _ in range(4):
        client = await world.connect("c")
        await world.go(5)
    assert problems(world)["duplicate"]["lasts"]
    client.drop()
    await world.go(70)
    assert not problems(world)["duplicate"]["lasts"]


@pytest.mark.parametrize("orderly", [True, False])
@in_world()
async def test_a_client_that_disconnects_each_time_does_not_fail(
    world: World, *, orderly: bool
) -> None:
    for _ in range(6):
        client = await world.connect("c", clean=True)
        if orderly:
            client.send(p.disconnect())
        else:
            client.drop()
        await world.go(5)
    assert codes(world) == (set() if orderly else {"flapping"})


async def _flaps(world: World, times: int, seconds: float) -> None:
    for _ in range(times):
        client = await world.connect("c", clean=True)
        client.drop()
        await world.go(seconds)


@in_world()
async def test_a_client_that_stays_connected_no_longer_flaps(world: World) -> None:
    await _flaps(world, 6, 1)
    assert problems(world)["flapping"]["lasts"]
    client = await world.connect("c", clean=True)
    await world.go(12)
    assert not problems(world)["flapping"]["lasts"]
    client.drop()
    await world.go(1)
    assert problems(world)["flapping"]["lasts"]


@in_world()
async def test_a_client_that_stays_away_no_longer_flaps(world: World) -> None:
    await _flaps(world, 6, 1)
    await world.go(12)
    assert not problems(world)["flapping"]["lasts"]


@in_world()
async def test_a_client_that_disconnects_in_the_end_no_longer_flaps(world: World) -> None:
    await _flaps(world, 6, 1)
    client = await world.connect("c", clean=True)
    client.send(p.disconnect())
    await world.go(1)
    assert not problems(world)["flapping"]["lasts"]


@in_world()
async def test_a_client_flaps_although_its_pauses_grow(world: World) -> None:
    for seconds in (1, 2, 4, 8, 16):
        await _flaps(world, 1, seconds)
        if "flapping" in codes(world):
            assert problems(world)["flapping"]["lasts"]


@in_world()
async def test_messages_at_qos_0_that_expired_have_no_event(world: World) -> None:
    node = world.broker.node
    await receives(world, 0)
    node.count_dropped("expired", 2, client="c")
    one = problems(world)["drops"]
    assert (one["by"], one["unrecorded"], one["session"]) == ({"expired": 2}, {"expired": 2}, True)
    node.count_dropped("expired", 3, client="c", position="1.0")
    one = problems(world)["drops"]
    assert (one["by"], one["unrecorded"]) == ({"expired": 5}, {"expired": 2})


@pytest.mark.parametrize("qos", [0, 1])
@in_world()
async def test_what_is_too_large_for_its_receiver_has_an_event(world: World, qos: int) -> None:
    client = Client5(world)
    client.send(p5.connect("c", properties=((p5.MAXIMUM_PACKET_SIZE, 30),)))
    client.send(p5.subscribe(1, ("a", qos)))
    await world.go(1)
    writer = await world.connect("w")
    writer.send(p.publish("a", bytes(50), qos, 1))
    await world.go(1)
    one = problems(world)["drops"]
    assert (one["by"], one["unrecorded"]) == ({"packet_too_large": 1}, {})


@in_world()
async def test_a_shared_subscription_has_the_highest_qos_of_its_members(world: World) -> None:
    node, name = world.broker.node, "$share/g/a"
    await world.connect("c0", filters=[(name, 0)])
    client = await world.connect("c1", filters=[(name, 1)])

    def qos() -> int:
        (row,) = receiver_rows(name, [(name, 2, True)], Previewed("a", 2, None), node)
        return int(row["qos"])

    assert qos() == 1
    client.drop()
    await world.go(1)
    assert qos() == 0


@in_world()
async def test_the_last_of_two_clients_of_one_identifier_is_not_taken_over(world: World) -> None:
    for _ in range(8):
        await world.connect("c")
        await world.go(1)
    assert problems(world)["duplicate"]["lasts"]
    await world.go(12)
    assert not problems(world)["duplicate"]["lasts"]
