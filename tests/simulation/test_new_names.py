"""New names of persons: which clients use up a key, and how many keys they may use up."""

from __future__ import annotations

from typing import Any

import pytest
from harness import mqtt5_packets as p5
from harness import packets as p
from structlog.testing import capture_logs

from actors.limits import key_shares
from actors.limits.limit_options import LimitOptions, Quota
from actors.session import content_sealing
from eventstore.format.erasure_events import TopicsKeyed
from eventstore.format.events import SessionOpened
from eventstore.format.name_entries import CLIENT, parts_of
from protocol.mqtt.reason_codes import ReasonCode
from simulation.checking import check_promises
from simulation.logins import AcceptingAuthenticator
from simulation.network import Client5, SimClient
from simulation.sealed_disk import without_threads
from simulation.test_erasure import SealedWorld, events, in_sealed_world

__all__ = ["without_threads"]

DAY = 20.0
UNKNOWN = "phone-unknown"
BROKEN_WILL = p5.connect(
    UNKNOWN, will=p5.Will("t", b"\xff", 1, properties=((p5.PAYLOAD_FORMAT, 1),))
)


async def code_of(
    world: SealedWorld, packet: bytes, *more: bytes, host: str = "192.0.2.1", go: float = 0.1
) -> int:
    """Connect, and send what is to be sent; return the code of the answer."""
    client = SimClient(world, host=host)
    client.send(packet, *more)
    await world.go(go)
    return client.take()[0].code


def clients_named(world: SealedWorld) -> int:
    entries = [parts_of(topic) for event in events(world, TopicsKeyed) for topic in event.topics]
    return [entry.kind for entry in entries if entry is not None].count(CLIENT)


async def reserved(world: SealedWorld) -> int:
    return await code_of(world, p.connect("$share/phone", clean=False))


async def too_many_sessions(world: SealedWorld) -> int:
    return await code_of(world, p.connect(UNKNOWN, username="zoe", clean=False))


async def too_many_connections(world: SealedWorld) -> int:
    return await code_of(world, p.connect(UNKNOWN, username="anna", clean=False))


async def publish_debt(world: SealedWorld) -> int:
    burst = [p.publish("t", b"x") for _ in range(500)]
    await code_of(world, p.connect("pump", username="zoe"), *burst)
    return await code_of(world, p.connect(UNKNOWN, username="zoe", clean=False))


async def will_qos(world: SealedWorld) -> int:
    return await refused5(world, p5.connect(UNKNOWN, will=p5.Will("t", b"x", 2)))


async def broken_will(world: SealedWorld) -> int:
    return await refused5(world, BROKEN_WILL)


async def refused5(world: SealedWorld, packet: bytes) -> int:
    client = Client5(world)
    client.send(packet)
    await world.go(0.1)
    ((_, code),) = client.codes()
    return code


REFUSALS = [
    (reserved, {}, 2),
    (too_many_sessions, {"max_sessions": 1}, 3),
    (too_many_connections, {"bounds": LimitOptions(user=Quota(connections=1))}, 3),
    (publish_debt, {"bounds": LimitOptions(user=Quota(publish_rate=10))}, 3),
    (will_qos, {"reject_qos2_publish": True}, ReasonCode.QOS_NOT_SUPPORTED),
    (broken_will, {"check_payload_format": True}, ReasonCode.PAYLOAD_FORMAT_INVALID),
]


@pytest.mark.parametrize(
    ("refuse", "options", "code"), REFUSALS, ids=[refuse.__name__ for refuse, _, _ in REFUSALS]
)
def test_a_refused_client_uses_up_no_key(refuse: Any, options: dict[str, Any], code: int) -> None:
    @in_sealed_world(personal_clients=("phone-*", "$*"), personal_users=("anna",), **options)
    async def scenario(world: SealedWorld) -> None:
        world.broker.admission.authenticator = AcceptingAuthenticator()
        known = SimClient(world)
        known.send(p.connect("phone-known", username="anna", clean=False))
        await world.go(0.1)
        assert known.take()[0].code == 0
        assert clients_named(world) == 1
        assert await refuse(world) == code
        assert clients_named(world) == 1
        await world.restart()
        assert world.broker.node.state.keys.count == 2

    scenario()


@in_sealed_world(personal_clients=("phone-*",))
async def test_two_connections_with_a_new_name_get_one_token(world: SealedWorld) -> None:
    one, two = SimClient(world), SimClient(world)
    for client in (one, two):
        client.send(p.connect("phone-twice", clean=False))
    await world.go(0.5)
    assert clients_named(world) == 1
    assert len({event.session for event in events(world, SessionOpened)}) == 1
    assert not one.open
    assert two.take()[0].code == 0


async def makes_up_names(world: SealedWorld, count: int, host: str, **more: Any) -> list[int]:
    return [
        await code_of(world, p.connect(f"phone-{host}-{number}", **more), host=host, go=0.02)
        for number in range(count)
    ]


@in_sealed_world(personal_clients=("phone-*",))
async def test_whoever_makes_up_names_leaves_keys_for_others(
    world: SealedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content_sealing, "_MOST_KEYS", 100)
    with capture_logs() as lines:
        codes = await makes_up_names(world, 30, "198.51.100.7")
    assert 8 <= codes.count(0) <= 10
    assert set(codes[10:]) == {3}
    (line,) = (line for line in lines if line.get("reason") == "new_names")
    assert (line["event"], line["address"]) == ("clients refused or closed", "198.51.100.7:50000")
    assert world.broker.node.limits.refused.counts["new_names"] == codes.count(3)
    assert await code_of(world, p.connect("phone-198.51.100.7-0"), host="198.51.100.7") == 0
    assert await code_of(world, p.connect("phone-other"), host="203.0.113.9") == 0
    assert await code_of(world, p.connect("pump"), host="198.51.100.7") == 0
    client = Client5(world, host="198.51.100.7")
    client.send(p5.connect("phone-again"))
    await world.go(0.1)
    assert client.codes() == [(p.CONNACK, ReasonCode.QUOTA_EXCEEDED)]
    await check_promises(world)


@in_sealed_world(personal_clients=("phone-*",))
async def test_keys_never_run_out_for_others(
    world: SealedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content_sealing, "_MOST_KEYS", 100)
    monkeypatch.setattr(key_shares, "_DAY", DAY)
    for day in range(10):
        await makes_up_names(world, 12, "198.51.100.7", username=f"day-{day}")
        await world.go(DAY / 2)
    assert world.broker.node.sealing.free >= 50
    assert await code_of(world, p.connect("phone-other"), host="203.0.113.9") == 0


@in_sealed_world(personal_clients=("phone-*",))
async def test_a_verified_user_has_one_share_at_all_addresses(
    world: SealedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content_sealing, "_MOST_KEYS", 100)
    world.broker.admission.authenticator = AcceptingAuthenticator()
    codes: list[int] = []
    for number in range(15):
        codes += await makes_up_names(world, 1, f"198.51.100.{number}", username="stolen")
    assert 8 <= codes.count(0) <= 10
    assert codes[-1] == 3
    assert await code_of(world, p.connect("phone-o", username="o"), host="203.0.113.9") == 0
