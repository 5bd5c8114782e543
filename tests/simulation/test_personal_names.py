"""Names of persons: known by tokens only, which nothing can resolve after an erasure."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from harness import mqtt5_packets as p5
from harness import packets as p
from harness.packets import Publish
from structlog.testing import capture_logs

from actors.access.credentials import AuthResult, Credentials, Verdict
from actors.inspection.inspector import Refused
from actors.inspection.tracer import Tracer
from actors.maintenance import retention
from actors.maintenance.sealing_start import KeysMissing
from actors.session import content_sealing
from eventstore.format.erasure_events import Erased, ErasureRequested, KeysSnapshot, TopicsKeyed
from eventstore.format.events import MessageDropped, SessionExpired, SessionOpened, WillFired
from eventstore.format.name_entries import CLIENT, LONGEST_NAME, USER, is_token
from eventstore.log.key_file import KeyFileError
from eventstore.log.shared_keys import Keys
from protocol.mqtt.loop_path import with_logs
from simulation.checking import acknowledged, check_promises
from simulation.inspection import ask, change
from simulation.log_cuts import publish_noise
from simulation.logins import AcceptingAuthenticator
from simulation.network import Client5, SimClient
from simulation.sealed_disk import without_threads
from simulation.test_erasure import SealedWorld, events, in_sealed_world, restoring

__all__ = ["without_threads"]

ALICE, ANNA = "phone-alice-7f3a", "anna-7f3a"
in_named_world = in_sealed_world(
    personal_clients=("phone-*", "auto-*"), personal_users=("anna*", "bert*")
)
WILL = p.Will("words/last", b"last words", 1)


async def enter(world: SealedWorld, name: str, user: str | None = None, **more: Any) -> SimClient:
    """Connect with a user name."""
    client = SimClient(world)
    client.send(p.connect(name, username=user, **{"clean": False} | more))
    await world.go(0.1)
    (accepted,) = client.take()
    assert accepted.code == 0
    return client


def forms(name: str) -> list[bytes]:
    raw = name.encode()
    shifted = [base64.b64encode(bytes(at) + raw)[4 * (at > 0) : -4] for at in range(3)]
    escaped = "".join(f"\\u{ord(each):04x}" for each in name).encode()
    return [
        raw,
        name.encode("utf-16-le"),
        raw.hex().encode(),
        json.dumps(name).encode(),
        escaped,
        *shifted,
    ]


def readable(world: SealedWorld, name: str) -> bool:
    """Return whether a name is in what is stored, or in the file with the keys, in any form."""
    stored = world.stored() + world.path.read_bytes()
    return any(form in stored for form in forms(name))


async def erase(world: SealedWorld, kind: str, name: str) -> dict[str, Any]:
    return await change(world, "erase", kind=kind, name=name)


def tokens(world: SealedWorld) -> list[str]:
    """The sessions of persons, each time when one was opened."""
    return [event.session for event in events(world, SessionOpened) if is_token(event.session)]


@in_named_world
async def test_the_log_knows_a_person_by_a_token(world: SealedWorld) -> None:
    alice = await enter(world, ALICE, ANNA)
    await enter(world, "pump-1", "carl")
    person, pump = events(world, SessionOpened)
    assert is_token(person.session)
    assert is_token(person.user)
    assert person.user != person.session
    assert (pump.session, pump.user) == ("pump-1", "carl")
    assert world.broker.node.user_in_log("bert") == "~"
    alice.drop()
    await world.go(1)
    for restarted in (False, True):
        if restarted:
            await world.restart()
        again = await enter(world, ALICE, ANNA)
        again.drop()
        await world.go(1)
    assert tokens(world) == [person.session] * 3
    assert len(events(world, TopicsKeyed)) == 2
    assert not readable(world, ALICE)
    assert not readable(world, ANNA)
    assert readable(world, "pump-1")
    await check_promises(world)


@pytest.mark.parametrize("restarted", [False, True])
@in_named_world
async def test_an_erased_client_is_unknown_and_gone(world: SealedWorld, *, restarted: bool) -> None:
    reader = await world.connect("reader", filters=[("words/#", 1)])
    alice = await enter(world, ALICE, will=WILL)
    alice.send(p.subscribe(1, ("news", 1)))
    await world.go(1)
    (token,) = tokens(world)
    before = world.path.read_bytes()
    assert (await ask(world, "erasures.name", kind=CLIENT, name=ALICE)) == {
        "token": f"client {token}",
        "sessions": [token],
        "total": 1,
        "logs": 1,
    }
    done = await erase(world, CLIENT, ALICE)
    assert done == {
        "keys": 1,
        "retained": 0,
        "erasures": [1],
        "token": f"client {token}",
        "sessions": 1,
    }
    await world.go(1)
    assert not alice.open
    assert token not in world.broker.node.state.sessions
    assert not [packet for packet in reader.take() if isinstance(packet, Publish)]
    assert [event.reason for event in events(world, MessageDropped)] == ["erased"]
    if restarted:
        await world.restart()
    (asked,) = events(world, ErasureRequested)
    (number,) = asked.keys
    assert world.keys.key(number) is None
    assert before[128 + 64 * (number - 1) :][:32] not in world.path.read_bytes()
    assert (await ask(world, "erasures.name", kind=CLIENT, name=ALICE))["token"] is None
    with pytest.raises(Refused, match="has no token"):
        await erase(world, CLIENT, ALICE)
    back = SimClient(world)
    back.send(p.connect(ALICE, clean=False))
    await world.go(0.5)
    (accepted,) = back.take()
    assert not accepted.session_present
    assert tokens(world)[-1] != token
    assert not readable(world, ALICE)
    await check_promises(world)


def step_at_keys(world: SealedWorld) -> None:
    """Let the fuse burn when keys are destroyed, too."""
    destroy = world.keys.erase

    def erase_keys(numbers: Iterable[int], erasure: int) -> None:
        world.step("before keys are destroyed")
        if world.up:
            destroy(numbers, erasure)
            world.step("keys destroyed")

    world.keys.erase = erase_keys  # type: ignore[method-assign]


KILLS = 9
"""The steps of an erasure, and one more."""


@pytest.mark.parametrize("fuse", range(KILLS))
@pytest.mark.parametrize(("kind", "name"), [(CLIENT, ALICE), (USER, ANNA)])
@in_named_world
async def test_the_erasure_of_a_name_survives_a_kill_at_any_step(
    world: SealedWorld, *, fuse: int, kind: str, name: str
) -> None:
    await world.connect("reader", filters=[("words/#", 1)])
    await enter(world, "pump-1", ANNA, will=WILL)
    alice = await enter(world, ALICE, ANNA, will=WILL)
    alice.send(p.subscribe(1, ("news", 1)))
    await world.go(1)
    (token,) = tokens(world)
    (first,) = (event for event in events(world, SessionOpened) if event.session == token)
    step_at_keys(world)
    world.fuse = fuse
    erasing = asyncio.ensure_future(erase(world, kind, name))
    await world.go(2)
    assert bool(world.killed) is (fuse < KILLS - 1)
    world.fuse = None
    erasing.cancel()
    await world.restart()
    await world.go(1)
    requested = bool(events(world, ErasureRequested))
    assert len(events(world, Erased)) == requested
    entry = world.broker.node.names.entry(kind, name)
    assert (not entry) is requested
    sessions = world.broker.node.state.sessions
    assert (token in sessions) is not requested
    assert ("pump-1" in sessions) is not (requested and kind == USER)
    back = await world.connect("reader", present=True)
    got = await acknowledged(world, back)
    assert len(got) == 2 * (not requested) + (requested and kind == CLIENT)
    again = await enter(world, ALICE, ANNA)
    last = events(world, SessionOpened)[-1]
    assert (last.session == token) is not (requested and kind == CLIENT)
    assert (last.user == first.user) is not (requested and kind == USER)
    again.drop()
    assert not readable(world, ALICE)
    assert not readable(world, ANNA)
    await check_promises(world)


@in_named_world
async def test_an_erased_user_takes_the_sessions_along(world: SealedWorld) -> None:
    world.broker.admission.authenticator = AcceptingAuthenticator()
    clients = [await enter(world, name, ANNA) for name in (ALICE, "pump-1", "pump-2")]
    other = await enter(world, "pump-3", "carl")
    clients[2].drop()
    await world.go(1)
    done = await erase(world, USER, ANNA)
    assert done["sessions"] == 3
    await world.go(1)
    assert [client.open for client in (*clients, other)] == [False, False, False, True]
    assert [*world.broker.node.state.sessions] == ["pump-3"]
    assert len(events(world, SessionExpired)) == 3
    back = await enter(world, "pump-1", ANNA)
    assert back.open
    first, last = (event for event in events(world, SessionOpened) if event.session == "pump-1")
    assert is_token(last.user)
    assert first.user != last.user
    assert tokens(world)[0] == world.broker.node.names.client(ALICE)
    await check_promises(world)


@in_named_world
async def test_a_user_that_returns_during_its_erasure_is_told_to_try_again(
    world: SealedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.broker.admission.authenticator = AcceptingAuthenticator()
    await enter(world, "pump-1", ANNA)
    with monkeypatch.context() as broken:

        def fail(*_: object) -> None:
            raise KeyFileError("disk full")

        broken.setattr(Keys, "erase", fail)
        with pytest.raises(Refused, match="not erased yet"):
            await erase(world, USER, ANNA)
        again = SimClient(world)
        again.send(p.connect("pump-1", username=ANNA, clean=False))
        await world.go(0.5)
        assert again.take()[0].code == 3
    await world.go(6)
    assert "pump-1" not in world.broker.node.state.sessions
    assert not world.broker.node.limits.refused.counts["other_user"]
    await enter(world, "pump-1", ANNA)
    await check_promises(world)


@in_named_world
async def test_a_bridge_of_another_broker_is_known_by_its_own_name(world: SealedWorld) -> None:
    topic = f"$SYS/broker/connection/{ALICE}/state"
    reader = await world.connect("reader", filters=[(topic, 1)])
    client = Client5(world)
    client.send(p5.connect(ALICE, will=p5.Will(topic, b"0", 1, retain=True)))
    await world.go(0.5)
    client.send(p5.publish(topic, b"1", 1, 1, retain=True))
    client.send(p5.publish("t", b"x", 1, 2, properties=with_logs(b"", "sim")))
    await world.go(0.5)
    assert world.broker.node.dropped["bridge_loop"] == 1
    client.drop()
    await world.go(5)
    assert [each.payload for each in reader.take()] == [b"1", b"0"]
    assert not world.broker.node.dropped["reserved_topic"]


@in_named_world
async def test_a_session_belongs_to_the_user_behind_a_token(world: SealedWorld) -> None:
    world.broker.admission.authenticator = AcceptingAuthenticator()
    first = await enter(world, "pump-1", ANNA)
    (session,) = events(world, SessionOpened)
    for user in ("bert", session.user, "carl", None):
        thief = SimClient(world)
        thief.send(p.connect("pump-1", username=user, clean=False))
        await world.go(0.2)
        assert thief.take()[0].code == 2
    assert first.open
    await enter(world, "pump-1", ANNA)


@in_named_world
async def test_nobody_becomes_a_person_by_its_token(world: SealedWorld) -> None:
    await enter(world, ALICE)
    (token,) = tokens(world)
    await enter(world, token)
    assert [event.session for event in events(world, SessionOpened)] == [token, f"~{token}"]
    assert len(events(world, TopicsKeyed)) == 1


class Refusing(AcceptingAuthenticator):
    """Refuses every login."""

    def check_now(self, _shown: Credentials) -> Verdict | None:
        return Verdict(AuthResult.BAD_CREDENTIALS)


@pytest.mark.parametrize("known", [False, True])
@in_named_world
async def test_refused_clients_get_no_token(world: SealedWorld, *, known: bool) -> None:
    if known:
        await enter(world, ALICE, ANNA)
    count = len(events(world, TopicsKeyed))
    world.broker.admission.authenticator = Refusing()
    with capture_logs() as lines:
        client = SimClient(world)
        client.send(p.connect(ALICE, username=ANNA))
        await world.go(0.5)
    assert client.take()[0].code == 4
    assert len(events(world, TopicsKeyed)) == count
    (line,) = (line for line in lines if "user" in line)
    names = world.broker.node.names
    assert (line["client"], line["user"]) == (names.client(ALICE), names.user(ANNA))
    assert is_token(line["client"]) is is_token(line["user"]) is known
    assert ALICE not in str(lines)
    assert ANNA not in str(lines)


@in_named_world
async def test_log_lines_and_answers_have_tokens(world: SealedWorld) -> None:
    with capture_logs() as lines:
        world.broker.admission.authenticator = AcceptingAuthenticator()
        first = await enter(world, ALICE, ANNA, will=WILL)
        await enter(world, ALICE, ANNA)
        assert not first.open
        thief = SimClient(world)
        thief.send(p.connect(ALICE, username="bert"))
        await world.go(0.2)
        broken = await enter(world, "phone-broken-7f3a", ANNA)
        broken.send(b"\x00\x00")
        await world.go(1)
        (token, *_) = tokens(world)
        answers = [
            await ask(world, endpoint, **request)
            for endpoint, request in (
                ("sessions", {}),
                ("session", {"client": token}),
                ("status", {}),
                ("problems", {}),
                ("actors", {}),
                ("erasures.name", {"kind": CLIENT, "name": ALICE}),
            )
        ]
        await world.restart()
        await erase(world, CLIENT, ALICE)
    shown = str(lines) + str(answers)
    assert token in shown
    for name in (ALICE, ANNA, "phone-broken-7f3a", "bert"):
        assert name not in shown


@in_sealed_world(
    personal_clients=("phone-*",), personal_users=("anna*",), response_information="answers/%c"
)
async def test_a_trace_has_tokens(world: SealedWorld) -> None:
    first = await enter(world, ALICE, ANNA)
    (token,) = tokens(world)
    sent: list[bytes] = []
    tracer = Tracer(
        world.broker.node, world.broker.admission, lambda _subject, data: sent.append(data)
    )
    tracer.start({"token": "T" * 22, "client": token})
    first.drop()
    again = Client5(world)
    properties = ((p5.REQUEST_RESPONSE_INFORMATION, 1), (p5.USER_PROPERTY, ("owner", ANNA)))
    again.send(p5.connect(ALICE, username=ANNA, clean=False, properties=properties))
    await world.go(1)
    (accepted,) = again.take()
    again.send(p5.disconnect(0, ((p5.USER_PROPERTY, ("owner", ANNA)),)))
    await world.go(1)
    assert accepted.get(p5.RESPONSE_INFORMATION) == f"answers/{ALICE}"
    lines = b"".join(sent)
    assert b'"CONNECT"' in lines
    assert b'"CONNACK"' in lines
    assert b'"DISCONNECT"' in lines
    assert token.encode() in lines
    assert ALICE.encode() not in lines
    assert ANNA.encode() not in lines


@pytest.mark.parametrize("name", [ALICE, "phone-bob"])
@in_named_world
async def test_no_session_has_a_name_that_is_replaced(world: SealedWorld, *, name: str) -> None:
    await enter(world, ALICE)
    with pytest.raises(Refused, match=f"no session '{name}'; such a client has a token instead"):
        await ask(world, "session", client=name)
    with pytest.raises(Refused, match=r"no session 'pump-1'(; did you mean .*)?$"):
        await ask(world, "session", client="pump-1")
    with pytest.raises(Refused, match=r"no session '~a+'(; did you mean .*)?$"):
        await ask(world, "session", client="~" + "a" * 16)


@in_named_world
async def test_an_assigned_identifier_uses_up_no_key(world: SealedWorld) -> None:
    client = Client5(world)
    client.send(p5.connect("", clean=True))
    await world.go(0.5)
    (accepted,) = client.take()
    given = accepted.get(p5.ASSIGNED_CLIENT_IDENTIFIER)
    assert given.startswith("auto-")
    old = SimClient(world)
    old.send(p.connect("", clean=True))
    await world.go(0.5)
    assert [each.code for each in old.take()] == [0]
    client.drop()
    await world.go(0.5)
    await enter(world, given)
    opened = [each.session for each in events(world, SessionOpened)]
    assert opened[::2] == [given] * 2
    assert len(set(opened)) == 2
    assert not events(world, TopicsKeyed)
    await enter(world, "auto-mobile")
    assert len(tokens(world)) == 1


@in_sealed_world(personal_users=("anna*",))
async def test_a_client_may_be_called_like_a_hidden_one(world: SealedWorld) -> None:
    await enter(world, "~", "carl")
    assert [each.session for each in events(world, SessionOpened)] == ["~"]


@in_sealed_world(personal_clients=("phone-*",))
async def test_a_user_may_be_called_like_a_hidden_one(world: SealedWorld) -> None:
    await enter(world, "pump-1", "~")
    assert [each.user for each in events(world, SessionOpened)] == ["~"]


@in_named_world
async def test_user_properties_of_connect_are_not_recorded(world: SealedWorld) -> None:
    client = Client5(world)
    client.send(p5.connect("pump-1", properties=((p5.USER_PROPERTY, ("owner", ANNA)),)))
    await world.go(0.5)
    assert client.codes() == [(p.CONNACK, 0)]
    assert not readable(world, ANNA)


@pytest.mark.parametrize(("name", "room"), [("phone-bob", 0), ("phone-" + "x" * 40_000, 9)])
@in_named_world
async def test_without_room_for_keys_new_names_are_refused(
    world: SealedWorld, monkeypatch: pytest.MonkeyPatch, *, name: str, room: int
) -> None:
    await enter(world, ALICE)
    monkeypatch.setattr(content_sealing, "_MOST_KEYS", 1 + room)
    client = Client5(world)
    client.send(p5.connect(name))
    await world.go(0.5)
    assert client.codes() == [(p.CONNACK, 0x97)]
    for other in (ALICE, "pump-1", ""):
        await enter(world, other, clean=not other)
    assert world.broker.node.limits.refused.counts["personal_keys"] == 1
    assert len(events(world, TopicsKeyed)) == 1


@in_named_world
async def test_the_longest_name_gets_a_token(world: SealedWorld) -> None:
    name = "phone-".ljust(LONGEST_NAME, "x")
    await enter(world, name)
    (token,) = tokens(world)
    await world.go(10)
    await world.restart()
    await enter(world, name)
    assert tokens(world) == [token] * 2
    assert not readable(world, name)


@in_named_world
async def test_a_restored_log_learns_which_names_were_erased(world: SealedWorld) -> None:
    alice = await enter(world, ALICE, ANNA)
    alice.drop()
    await world.go(1)
    (token,) = tokens(world)
    restore = restoring(world)
    await erase(world, CLIENT, ALICE)
    await restore()
    (requested,) = events(world, ErasureRequested)
    assert requested.cause == "restored"
    assert token not in world.broker.node.state.sessions
    await enter(world, ALICE, ANNA)
    assert tokens(world)[-1] != token
    await check_promises(world)


@in_named_world
async def test_a_client_without_a_token_yet_gets_no_session(world: SealedWorld) -> None:
    client = SimClient(world)
    await world.go(0.1)
    admission = world.broker.admission
    admission._left.update(admission.connections)  # such a one is not counted any more
    client.send(p.connect(ALICE, username=ANNA))
    await world.go(0.5)
    assert client.take()[0].code == 3
    assert not events(world, SessionOpened)


@in_sealed_world(personal_users=("anna*",))
async def test_only_tokens_of_a_kind_that_is_replaced_can_be_erased(world: SealedWorld) -> None:
    name = "~" + "a" * 16
    client = await enter(world, name, will=WILL)
    client.drop()
    await world.restart()
    assert name in world.broker.node.state.sessions
    assert len(events(world, WillFired)) == 1
    assert not events(world, MessageDropped)


@in_named_world
async def test_the_settings_stay_necessary(world: SealedWorld) -> None:
    await enter(world, ALICE, ANNA)
    for setting in ("personal_clients", "personal_users"):
        await world.crash()
        options, world.options = world.options, replace(world.options, **{setting: ()})
        with pytest.raises(KeysMissing, match=f"tokens instead of names, but {setting} is not set"):
            await world.start()
        await world.crash()
        world.options = replace(options, **{setting: ("nobody",)})
        await world.start()
        world.options = options
    await enter(world, ALICE, ANNA)
    assert len(set(tokens(world))) == 1


@in_named_world
async def test_an_older_key_file_does_not_bring_names_back(world: SealedWorld) -> None:
    await enter(world, ALICE)
    old = world.path.read_bytes()
    await erase(world, CLIENT, ALICE)
    await world.crash()
    world.path.write_bytes(old)
    await world.start()
    assert not world.broker.node.names.entry(CLIENT, ALICE)
    assert world.keys.key(1) is None


@in_named_world
async def test_a_key_that_cannot_be_destroyed_now_is_destroyed_later(
    world: SealedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await enter(world, ALICE)
    (token,) = tokens(world)
    with monkeypatch.context() as broken:

        def fail(*_: object) -> None:
            raise KeyFileError("disk full")

        broken.setattr(Keys, "erase", fail)
        with pytest.raises(Refused, match="not erased yet, it is tried again every 5 s: disk full"):
            await erase(world, CLIENT, ALICE)
        await world.go(6)
        assert not events(world, Erased)
    await world.go(6)
    assert len(events(world, Erased)) == 1
    assert token not in world.broker.node.state.sessions
    assert world.keys.key(1) is None
    await check_promises(world)


@in_sealed_world(personal_clients=("phone-*",), keep=0.0, keep_bytes=40_000)
async def test_a_cut_log_keeps_names(world: SealedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_MIN", 2000)
    alice = await enter(world, ALICE)
    alice.drop()
    (token,) = tokens(world)
    noisy = await world.connect("noisy")
    await publish_noise(world, noisy, 400)
    await world.go(10)
    assert world.disk.stream.first > 1
    assert events(world, KeysSnapshot)
    await world.restart()
    await enter(world, ALICE)
    assert tokens(world)[-1] == token
    await erase(world, CLIENT, ALICE)
    await check_promises(world)


@in_named_world
async def test_an_erasure_of_topics_leaves_names(world: SealedWorld) -> None:
    await enter(world, ALICE)
    with pytest.raises(Refused, match="no topic with sealed contents"):
        await change(world, "erase", filter="#")
    for topic_filter in ("$+client/#", "$+/#", "+/+/#"):
        with pytest.raises(Refused):
            await change(world, "erase", filter=topic_filter)
    assert world.broker.node.names.entry(CLIENT, ALICE)


@in_named_world
async def test_a_client_that_waits_while_it_is_erased_is_refused(
    world: SealedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await enter(world, ALICE)
    (token,) = tokens(world)
    late = SimClient(world)
    with monkeypatch.context() as between:  # as if it were erased between login and session
        between.setattr(world.broker.node.names, "are_current", lambda *_: False)
        late.send(p.connect(ALICE, clean=False))
        await world.go(0.5)
    assert late.take()[0].code == 3
    assert not late.open
    assert tokens(world) == [token]
    await check_promises(world)
