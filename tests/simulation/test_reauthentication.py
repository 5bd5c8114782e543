"""Clients that authenticate again: permissions, expiry, identity, and errors."""

from collections import Counter
from typing import Any

import pytest
from harness import mqtt5_packets as p5
from harness import packets as p

from actors.access.credentials import AuthResult, Credentials, Verdict
from actors.access.enhanced import Challenge, Exchange, Outcome, Step
from actors.access.rules import Rule
from actors.connection.connect_handshake import ConnectHandshake
from actors.limits.limit_options import LimitOptions
from eventstore.format.events import SessionClosed
from protocol.mqtt.packets import Connect
from simulation.logins import AcceptingAuthenticator
from simulation.loop import simulate
from simulation.network import Client5
from simulation.world import World, in_world

METHOD = "TEST"
AGAIN, CONTINUE = 0x19, 0x18
MAY = Rule(allow=True, publish=True, subscribe=True, filter="may/#", where="test")
ALL = Rule(allow=True, publish=True, subscribe=True, filter="#", where="test")
AWAY = Verdict(AuthResult.UNAVAILABLE, reason="away")
WRONG = Verdict(AuthResult.BAD_CREDENTIALS, reason="wrong")


class ScriptedMethod(AcceptingAuthenticator):
    """Has one method, whose answers are those that a test says, in their order."""

    def __init__(self, *steps: Step) -> None:
        super().__init__()
        self.steps = [*steps]
        self.exchanges: list[Exchange] = []
        self.data: list[bytes | None] = []

    def begin_exchange(  # type: ignore[override]
        self, method: str, credentials: Credentials, *, reauthenticates: bool = False
    ) -> Exchange | None:
        if method != METHOD:
            return None
        self.exchanges.append(Exchange(method, credentials, reauthenticates=reauthenticates))
        return self.exchanges[-1]

    async def step(self, exchange: Exchange, data: bytes | None) -> Step:
        assert exchange is self.exchanges[-1]
        self.data.append(data)
        return self.steps.pop(0)

    def holds(self, verdict: Verdict) -> bool:
        return verdict.proof != 0


def granted(user: str = "ann", data: bytes | None = None, **about: Any) -> Outcome:
    return Outcome(Verdict(AuthResult.ACCEPTED, user, **about), data)


def auth(code: int, data: bytes = b"x", method: str = METHOD) -> bytes:
    properties = ((p5.AUTHENTICATION_METHOD, method), (p5.AUTHENTICATION_DATA, data))
    return p5.auth(code, properties)


def connect(client_id: str = "c", **more: Any) -> bytes:
    properties = ((p5.AUTHENTICATION_METHOD, METHOD), (p5.SESSION_EXPIRY, 1000))
    return p5.connect(client_id, properties=properties, **more)


async def entered(world: World, authenticator: ScriptedMethod, **more: Any) -> Client5:
    world.broker.admission.authenticator = authenticator
    client = Client5(world)
    client.send(connect(**more))
    await world.go(0.2)
    assert client.codes() == [(p.CONNACK, 0)]
    return client


def closed(world: World) -> SessionClosed:
    return world.disk.events(SessionClosed)[-1]


@in_world()
async def test_permissions_change_with_the_login(world: World) -> None:
    login = ScriptedMethod(
        granted(rules=(MAY,)), Challenge(b"?"), granted(rules=(ALL,)), granted(rules=(MAY,))
    )
    client = await entered(world, login, username="ann", password=b"p")
    other = await world.connect("o", filters=[("#", 0)])
    for packet in (auth(AGAIN), auth(CONTINUE), auth(AGAIN)):
        client.send(p5.publish("other/x", b"", 1, 1), p5.subscribe(2, ("other/y", 0)))
        await world.go(0.2)
        client.send(packet)
        await world.go(0.2)
    client.send(p5.publish("other/x", b"", 1, 1), p5.subscribe(2, ("other/y", 0)))
    await world.go(0.2)
    answers = [packet for packet in client.take() if isinstance(packet, p5.Answer)]
    pubacks = [packet.code for packet in answers if packet.kind == p.PUBACK]
    subacks = [packet.codes for packet in answers if packet.kind == p.SUBACK]
    assert pubacks == [0x87, 0x87, 0, 0x87]
    assert subacks == [(0x87,), (0x87,), (0,), (0x87,)]
    # What was subscribed to meanwhile is not delivered with the permissions of now.
    other.send(p.publish("other/y", b"secret"))
    await world.go(0.2)
    assert not client.take()
    first, second, third = login.exchanges
    assert (first.reauthenticates, first.credentials.username) == (False, "ann")
    for again in (second, third):
        assert again.reauthenticates
        assert again.credentials.username == "ann"
        assert again.credentials.password is None, "it is not kept"
        assert again.credentials.client_id == "c"
    assert world.broker.node.counters.reauthentications == Counter(accepted=2)


@in_world()
async def test_a_new_login_lasts_longer_or_ends_sooner(world: World) -> None:
    clock = world.broker.node.clock

    def until(seconds: float) -> Outcome:
        return granted(expires_ms=clock.time_ms() + int(seconds * 1000))

    login = ScriptedMethod(until(100))
    client = await entered(world, login)
    for _ in range(5):
        await world.go(50)
        login.steps = [until(100)]
        client.send(auth(AGAIN))
        await world.go(0.1)
        assert client.codes() == [(p5.AUTH, 0)]
    login.steps = [until(10)]
    client.send(auth(AGAIN))
    await world.go(9.9)
    assert client.open
    await world.go(1)
    assert client.codes() == [(p5.AUTH, 0), (p.DISCONNECT, 0x87)]
    assert closed(world).reason == "login_expired"


@pytest.mark.parametrize(
    ("end", "code", "counted"),
    [
        (Outcome(WRONG), 0x87, "reauthentication"),
        (Outcome(AWAY), 0x89, "reauthentication"),
        (granted("bob"), 0x87, "other_user"),
        (granted(proof=0), 0x87, "reauthentication"),
    ],
)
@in_world()
async def test_failures_close_the_connection_and_keep_the_session(
    world: World, end: Outcome, code: int, counted: str
) -> None:
    login = ScriptedMethod(granted(), Challenge(None), end)
    client = await entered(world, login)
    client.send(auth(AGAIN), p5.publish("t", b"", 1, 5))
    await world.go(0.2)
    client.send(auth(CONTINUE))
    await world.go(0.2)
    assert client.codes()[-1] == (p.DISCONNECT, code)
    assert not client.open
    event = closed(world)
    assert (event.reason, event.code) == ("reauthentication_failed", code)
    assert "c" in world.broker.node.state.sessions
    assert world.broker.node.limits.refused.counts[counted] == 1
    assert world.broker.node.counters.reauthentications == Counter(refused=1)


@in_world()
async def test_a_method_that_a_reload_took_away(world: World) -> None:
    client = await entered(world, ScriptedMethod(granted()))
    world.broker.admission.authenticator = AcceptingAuthenticator()
    client.send(auth(AGAIN))
    await world.go(0.2)
    assert client.codes() == [(p.DISCONNECT, 0x8C)]


@pytest.mark.parametrize("times", [1, 2])
def test_bounds_of_an_exchange(times: int) -> None:
    """In the second minute as in the first."""

    async def scenario() -> None:
        bounds = LimitOptions(max_auth_steps=3, max_auth_bytes=10, max_reauthentications=times)
        async with World(bounds=bounds).running() as world:
            challenge = Challenge(b"?")
            login = ScriptedMethod(granted())
            client = await entered(world, login)
            for _ in range(2):
                for _ in range(times):
                    login.steps = [granted()]
                    client.send(auth(AGAIN))
                    await world.go(0.2)
                    assert client.codes() == [(p5.AUTH, 0)]
                await world.go(60)
            login.steps = [challenge, challenge, challenge]
            client.send(auth(AGAIN))
            for _ in range(3):
                await world.go(0.2)
                client.send(auth(CONTINUE))
            await world.go(0.2)
            assert client.codes() == [(p5.AUTH, 0x18)] * 3 + [(p.DISCONNECT, 0x97)]
            login.steps = [granted(), challenge]
            client = await entered(world, login)
            client.send(auth(AGAIN, b"x" * 6))
            await world.go(0.2)
            client.send(auth(CONTINUE, b"x" * 5))
            await world.go(0.2)
            assert client.codes() == [(p5.AUTH, 0x18), (p.DISCONNECT, 0x97)]
            login.steps = [granted() for _ in range(times + 1)]
            client = await entered(world, login)
            for _ in range(times + 1):
                client.send(auth(AGAIN))
                await world.go(0.2)
            assert client.codes() == [(p5.AUTH, 0)] * times + [(p.DISCONNECT, 0x97)]
            counts = world.broker.node.limits.refused.counts
            assert [counts[name] for name in ("auth_steps", "auth_bytes", "reauthentications")] == [
                1, 1, 1,
            ]  # fmt: skip

    simulate(scenario)


@in_world(connect_timeout=5.0)
async def test_a_client_that_does_not_answer_in_time(world: World) -> None:
    login = ScriptedMethod(granted(), Challenge(b"?"), granted(), Challenge(b"?"))
    client = await entered(world, login)
    client.send(auth(AGAIN))
    await world.go(3)
    client.send(auth(CONTINUE))
    await world.go(1)
    assert client.codes() == [(p5.AUTH, 0x18), (p5.AUTH, 0)]
    client.send(auth(AGAIN))
    await world.go(4.5)
    assert client.open, "the time of the one before is over"
    await world.go(1)
    assert client.codes() == [(p5.AUTH, 0x18), (p.DISCONNECT, 0x87)]


@in_world()
async def test_a_reason_string_is_sent_if_it_fits(world: World) -> None:
    for more, told in (
        ((), True),
        (((p5.REQUEST_PROBLEM_INFORMATION, 0),), False),
        (((p5.MAXIMUM_PACKET_SIZE, 30),), False),
    ):
        world.broker.admission.authenticator = ScriptedMethod(
            Challenge(b"?", "look at your token"), granted()
        )
        client = Client5(world)
        method = (p5.AUTHENTICATION_METHOD, METHOD)
        client.send(p5.connect("c", properties=(method, *more)))
        await world.go(0.2)
        (answer,) = client.take()
        assert isinstance(answer, p5.Answer)
        assert (answer.get(p5.REASON_STRING) is not None) == told
        assert answer.get(p5.AUTHENTICATION_DATA) == b"?"
        client.send(auth(CONTINUE))
        await world.go(0.2)
        assert client.codes() == [(p.CONNACK, 0)]


@in_world()
async def test_clients_that_leave_in_the_middle(world: World) -> None:
    for packets in ((connect(),), (connect(), auth(CONTINUE)), (connect(), b"\xe0\0")):
        world.broker.admission.authenticator = ScriptedMethod(Challenge(b"?"), granted())
        client = Client5(world)
        client.send(*packets)
        client.transport.drop()
        await world.go(1)
    client = await entered(world, ScriptedMethod(granted(), Challenge(b"?")))
    client.send(auth(AGAIN))
    client.transport.drop()
    await world.go(1)
    assert not world.broker.admission.connections
    assert not world.broker.admission._logins
    assert len(world.broker.node.limits.unauthenticated) == 0


@pytest.mark.plain
@in_world()
async def test_a_disconnect_behind_the_decision_and_before_connack_fires_no_will(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """[MQTT-3.14.4-3]: the client has said that all is well, and may before CONNACK."""
    other = await world.connect("o", filters=[("gone", 1)])
    world.broker.admission.authenticator = ScriptedMethod(granted())
    client = Client5(world)
    decided = ConnectHandshake.decided

    def decided_and_read(handshake: ConnectHandshake, packet: Connect, verdict: Verdict) -> None:
        decided(handshake, packet, verdict)
        handshake._connection.data_received(p5.disconnect())

    monkeypatch.setattr(ConnectHandshake, "decided", decided_and_read)
    client.send(connect(will=p5.Will("gone", qos=1)))
    await world.go(1)
    assert not client.open
    assert not [packet for packet in other.take() if isinstance(packet, p.Publish)]
    assert closed(world).reason == "disconnect"


@in_world()
async def test_the_answer_to_a_challenge_is_read_while_the_log_is_congested(world: World) -> None:
    login = ScriptedMethod(Challenge(b"?"), granted())
    world.broker.admission.authenticator = login
    world.broker.node.journal._max_pending = -1
    client = Client5(world)
    client.send(connect())
    await world.go(0.2)
    client.send(auth(CONTINUE, b"!"))
    await world.go(0.2)
    assert login.data[1:] == [b"!"]
    assert client.codes() == [(p5.AUTH, CONTINUE), (p.CONNACK, 0)]
