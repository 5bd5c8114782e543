"""The identity of clients: owners of sessions, claimed names, abandoned logins, debts."""

import asyncio
import contextlib
import ssl
from typing import Any

import pytest
from harness import packets as p
from harness.certs import Authority, Pair

from actors.access.credentials import AuthResult, Credentials, Verdict
from actors.connection.listener import Listener, ListenerOptions
from actors.limits.client_limits import ClientLimits
from actors.limits.limit_options import LimitOptions, Quota
from actors.transports.stack import StackOptions
from actors.transports.tls_context import TlsOptions, make_context
from eventstore.format.event_parsing import Event
from eventstore.format.events import SessionClosed
from simulation.logins import AcceptingAuthenticator, Slow, Threads
from simulation.network import SimClient
from simulation.permission_worlds import OPEN, permit, topics
from simulation.world import World, in_world

RULES = "[[allow]]\nusers = ['admin']\nboth = ['#']\n"


async def answer(
    world: World, *rest: bytes, wait: float = 0.2, host: str = "192.0.2.1", **about: Any
) -> tuple[Any, Any]:
    """A client, and the code of its CONNACK; None if there is none."""
    client = SimClient(world, host=host)
    client.send(p.connect(about.pop("client_id", "c"), **about), *rest)
    await world.go(wait)
    codes = [packet.code for packet in client.received if isinstance(packet, p.Connack)]
    return client, codes[0] if codes else None


@in_world()
async def test_a_session_belongs_to_the_user_that_created_it(world: World) -> None:
    world.broker.admission.authenticator = AcceptingAuthenticator()
    first, code = await answer(world, username="ann", clean=False)
    assert code == 0
    for clean in (False, True):
        for user in ("bob", None):
            assert (await answer(world, username=user, clean=clean))[1] == 2
    first.send(p.pingreq())
    await world.go(0.2)
    assert first.open, "nobody took it over"
    first.send(p.disconnect())
    await world.go(1)
    assert (await answer(world, username="bob", clean=False))[1] == 2
    assert (await answer(world, username="ann", clean=False))[1] == 0


@in_world()
async def test_anonymous_and_ended_sessions_have_no_owner(world: World) -> None:
    world.broker.admission.authenticator = AcceptingAuthenticator()
    nobody, code = await answer(world, clean=False)
    nobody.send(p.disconnect())
    await world.go(1)
    assert code == 0
    client, code = await answer(world, username="ann", clean=True)
    client.send(p.disconnect())
    await world.go(1)
    assert code == 0
    assert (await answer(world, username="bob", clean=False))[1] == 0


@in_world()
async def test_unverified_user_names_give_no_rights_and_own_nothing(world: World) -> None:
    reader = await world.connect("r", filters=[("#", 1)])
    client, code = await answer(world, username="admin", clean=False)
    assert code == 0
    permit(world, RULES)
    client.send(p.publish("x", b"1", 1, 1))
    await world.go(0.5)
    assert topics(reader) == []
    assert (await answer(world, username="somebody else", clean=False))[1] == 0


@in_world()
async def test_logins_that_are_given_up_before_they_begin_leave_room_for_others(
    world: World,
) -> None:
    world.broker.admission.authenticator = Slow()
    for number in range(1200):
        client = SimClient(world)
        client.send(p.connect(f"c{number}", username="ann"))
        client.transport.drop()
        if number % 100 == 0:
            await world.go(0.01)
    await world.go(3)
    assert (await answer(world, username="ann", wait=2))[1] == 0


@in_world(connect_timeout=5.0)
async def test_a_login_that_takes_too_long_is_no_missing_connect(world: World) -> None:
    slow = Slow()
    slow.seconds = 100.0
    world.broker.admission.authenticator = slow
    client, _ = await answer(world, username="ann")
    silent = SimClient(world)
    await world.go(20)
    assert (client.open, silent.open) == (False, False)
    assert world.broker.node.limits.refused.counts == {"connect_timeout": 1, "not_served": 1}


@in_world(bounds=LimitOptions(user=Quota(publish_rate=10)))
async def test_the_rate_of_a_user_applies_to_the_next_connection(world: World) -> None:
    world.broker.admission.authenticator = AcceptingAuthenticator()
    reader, _ = await answer(world, p.subscribe(1, ("#", 0)), client_id="r")
    burst = [p.publish("t", b"x") for _ in range(200)]
    client, code = await answer(world, *burst, username="ann", client_id="a")
    client.transport.drop()
    assert (code, len(topics(reader))) == (0, 200)
    assert (await answer(world, *burst, username="ann", client_id="b"))[1] == 3
    assert (await answer(world, username="bob", client_id="d"))[1] == 0
    await world.go(20)
    assert (await answer(world, username="ann", client_id="e"))[1] == 0
    assert len(topics(reader)) == 200
    assert world.broker.node.limits.refused.counts["publish_debt"] == 1


class Listed(AcceptingAuthenticator):
    """Users of a file, as name to hash; others came in by something else."""

    def __init__(self, **users: int) -> None:
        super().__init__()
        self.users = users

    def check_now(self, shown: Credentials) -> Verdict | None:
        name = shown.username
        proof = self.users.get(name or "")
        return Verdict(AuthResult.ACCEPTED, name, proof=proof)

    def holds(self, verdict: Verdict) -> bool:
        return verdict.proof is None or self.users.get(verdict.user or "") == verdict.proof


class Late(Listed):
    """Needs a moment, in which the users are read again."""

    def __init__(self, world: World, later: Listed, **users: int) -> None:
        super().__init__(**users)
        self.world = world
        self.later = later

    def check_now(self, _shown: Credentials) -> Verdict | None:
        return None

    async def check(self, shown: Credentials) -> Verdict:
        reread = self.world.broker.reload
        # After this check, and before the connection gets its result.
        asyncio.get_running_loop().call_soon(reread, self.world.broker.node.options, self.later)
        verdict = super().check_now(shown)
        assert verdict is not None
        return verdict


def about(world: World, session: str) -> list[Event]:
    """What the log says of a session."""
    return [event for event in world.disk.events() if getattr(event, "session", None) == session]


def closed(world: World) -> dict[str, str]:
    """Why the sessions ended, the last time."""
    ends = (event for event in world.disk.events() if isinstance(event, SessionClosed))
    return {end.session: end.reason for end in ends}


@in_world()
async def test_a_reload_disconnects_clients_with_changed_passwords(world: World) -> None:
    watcher = await world.connect("w", filters=[("wills/#", 1)])
    broker = world.broker
    broker.admission.authenticator = Listed(ann=1, bob=1, carl=1, dora=1)
    clients = {}
    for name in ("ann", "bob", "carl", "other", None):
        will = p.Will(f"wills/{name}", b"gone", 1)
        clients[name], code = await answer(
            world, client_id=f"c-{name}", username=name, clean=False, will=will
        )
        assert code == 0
    absent, _ = await answer(world, client_id="away", username="dora", clean=False)
    absent.send(p.disconnect())
    await world.go(1)
    was = about(world, "away")
    # The same users again: no connection ends.
    broker.reload(broker.node.options, Listed(ann=1, bob=1, carl=1, dora=1))
    await world.go(1)
    assert all(client.open for client in clients.values())
    # ann and dora are gone, and bob has another password.
    after = Listed(bob=2, carl=1)
    broker.reload(broker.node.options, after)
    await world.go(1)
    assert {name for name, client in clients.items() if not client.open} == {"ann", "bob"}
    reasons = {"c-ann": "login_revoked", "c-bob": "login_revoked", "away": "disconnect"}
    assert closed(world) == reasons
    assert sorted(topics(watcher)) == ["wills/ann", "wills/bob"]
    # Their sessions are there still.
    _, code = await answer(world, client_id="c-bob", username="bob", clean=False)
    assert code == 0
    state = broker.node.state.sessions.peek("c-bob")
    assert state is not None
    assert state.connected
    assert broker.node.state.sessions.peek("c-ann") is not None
    await world.restart()
    assert world.broker.node.state.sessions.peek("away") is not None
    assert about(world, "away") == was, "who is absent is not concerned"


@in_world()
async def test_users_that_change_while_a_login_is_on_its_way(world: World) -> None:
    world.broker.admission.authenticator = Late(world, Listed(), ann=1)
    client, code = await answer(world, username="ann")
    assert code == 4
    assert not client.open
    world.broker.admission.authenticator = Late(world, Listed(ann=1), ann=1)
    client, code = await answer(world, username="ann")
    assert code == 0
    assert client.open


@in_world(takeover_delay=5.0)
async def test_a_login_that_waits_for_its_turn_ends_with_its_password(world: World) -> None:
    broker = world.broker
    broker.admission.authenticator = Listed(ann=1)
    await answer(world, client_id="x", username="ann")
    rival, _ = await answer(world, client_id="x", username="ann", host="192.0.2.2")
    rival.send(p.pingreq())
    await world.go(0.1)
    waiting, code = await answer(world, client_id="x", username="ann")
    assert code is None
    broker.reload(broker.node.options, Listed())
    await world.go(10)
    assert not waiting.open
    assert waiting.received == []


class TlsVisitor:
    """A client of a TLS listener whose threads can be stuck."""

    def __init__(self, world: World, authority: Authority, server: Pair) -> None:
        self.threads = Threads(1)
        context = make_context(TlsOptions(server.certificate, server.key))
        options = StackOptions(tls_context=context, handshakes=self.threads)
        listener = Listener(ListenerOptions("", 1000, 5.0, stack=options), 0)
        self.client = SimClient(world, listener=listener)
        self.connection = self.client.connection
        self._got: list[bytes] = []
        self.client.receive = self._got.append  # type: ignore[method-assign]
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = authority.client_context().wrap_bio(
            self._in, self._out, server_hostname="localhost"
        )

    def greet(self) -> None:
        """Say what is next in the handshake."""
        self._in.write(b"".join(self._got))
        self._got.clear()
        with contextlib.suppress(ssl.SSLWantReadError):
            self._tls.do_handshake()
        self.client.protocol.data_received(self._out.read())

    def connect(self) -> None:
        self._tls.write(p.connect("visitor"))
        self.client.protocol.data_received(self._out.read())


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def server(authority: Authority) -> Pair:
    return authority.server()


@pytest.fixture
def blamed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(
        ClientLimits, "count_fault", lambda _guard, address, _now: found.append(address)
    )
    return found


@pytest.mark.plain
@pytest.mark.parametrize(("speaks", "seconds"), [(True, 10), (False, 5)])
@in_world()
async def test_a_tls_client_that_waits_for_a_thread_is_not_at_fault(
    world: World,
    speaks: bool,
    seconds: float,
    authority: Authority,
    server: Pair,
    blamed: list[str],
) -> None:
    visitor = TlsVisitor(world, authority, server)
    visitor.threads.stuck = True
    if speaks:
        visitor.greet()
    await world.go(seconds - 0.5)
    assert visitor.client.open
    await world.go(1)
    assert not visitor.client.open
    assert len(blamed) == (not speaks)
    visitor.threads.close()


@pytest.mark.plain
@pytest.mark.parametrize("speaks", [True, False])
@in_world()
async def test_time_waiting_for_a_handshake_thread_extends_the_timeout(
    world: World, speaks: bool, authority: Authority, server: Pair, blamed: list[str]
) -> None:
    visitor = TlsVisitor(world, authority, server)
    visitor.threads.stuck = True
    visitor.greet()
    await world.go(4)
    visitor.threads.start_from()
    await world.go(0.1)
    visitor.greet()
    await world.go(4)
    if speaks:
        visitor.connect()
    await world.go(2)
    assert visitor.client.open is speaks
    assert len(blamed) == (not speaks)
    visitor.threads.close()


@pytest.mark.parametrize("ends", ["refused", "connect_timeout", None])
@in_world()
async def test_a_connection_that_is_lost_during_its_handshake_is_removed(
    world: World, ends: str | None, authority: Authority, server: Pair
) -> None:
    visitor = TlsVisitor(world, authority, server)
    visitor.greet()
    await world.go(0.1)
    visitor.threads.stuck = True
    visitor.greet()
    visitor.client.transport.drop()
    await world.go(1)
    assert visitor.connection in world.broker.admission.connections
    if ends == "refused":
        visitor.connection.abort(ends)
    elif ends is None:
        visitor.threads.start_from()
    await world.go(1 if ends != "connect_timeout" else 20)
    assert visitor.connection not in world.broker.admission.connections
    assert visitor.connection.stopped
    visitor.threads.start_from()
    await world.go(1)
    visitor.threads.close()


@in_world(takeover_delay=5.0)
async def test_a_change_of_permissions_holds_for_a_connect_that_waits(world: World) -> None:
    permit(world, OPEN)
    reader = await world.connect("r", filters=[("#", 1)])
    await answer(world, client_id="x", clean=False)
    rival, _ = await answer(world, client_id="x", clean=False, host="192.0.2.2")
    rival.send(p.pingreq())
    await world.go(0.1)
    waiting, code = await answer(world, client_id="x", clean=False)
    assert code is None
    permit(world, OPEN + "[[deny]]\nclients = ['x']\npublish = ['secret']\n")
    await world.go(10)
    waiting.send(p.publish("secret", b"1", 1, 1))
    await world.go(1)
    assert topics(reader) == []
