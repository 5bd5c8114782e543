"""Names of persons with several logs: each has tokens of its own, and all of them erase."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from harness import packets as p

from actors.inspection import erasure
from actors.inspection.inspector import Refused
from actors.session.personal_names import PersonalNames
from eventstore.errors import EventStoreError
from eventstore.format.erasure_events import Erased, ErasureRequested, TopicsKeyed
from eventstore.format.events import SessionOpened
from eventstore.format.name_entries import CLIENT, USER, is_token
from eventstore.format.node_events import LeaderProved
from eventstore.log.key_file import KeyFileError
from eventstore.log.name_requests import NameRequest, store_request, stored_requests
from eventstore.log.shared_keys import Keys
from eventstore.partitions import partition_of
from protocol.errors import FoldmqError
from simulation.inspection import ask, change
from simulation.network import SimClient
from simulation.partitions import name_in
from simulation.sealed_disk import without_threads
from simulation.test_erasure_of_logs import (
    ALICE,
    SECRET,
    Scenario,
    SealedPartition,
    away,
    in_two_logs,
    publish,
    received,
)
from simulation.test_personal_names import ANNA, forms
from simulation.world import runs

if TYPE_CHECKING:
    from actors.session.node_context import NodeContext

__all__ = ["without_threads"]

PATTERNS = {"personal_clients": ("phone-*",), "personal_users": ("anna*",)}


def in_two_named_logs(scenario: Scenario, **options: Any) -> None:
    in_two_logs(scenario, **PATTERNS, **options)


def phone(world: SealedPartition, of: str = "phone-alice-7f3a-") -> str:
    """The client identifier of a person that belongs to a log."""
    return name_in(world.all, world.all.index(world), of)


async def enter(
    world: SealedPartition, name: str, user: str | None = ANNA, code: int = 0
) -> SimClient:
    client = SimClient(world)
    client.send(p.connect(name, username=user, clean=False))
    await world.go(0.2)
    (answer,) = client.take()
    assert answer.code == code
    return client


async def erase(world: SealedPartition, kind: str, name: str, **more: Any) -> dict[str, Any]:
    return await change(world, "erase", kind=kind, name=name, **more)


def stored_of(world: SealedPartition) -> bytes:
    files = [each.read_bytes() for each in world.path.parent.iterdir()]
    keyed = [data for _, _, data in world.keyed.history]
    return b"\n".join([world.stored(), *keyed, *files])


def readable(world: SealedPartition, *names: str) -> list[str]:
    """The names that are in what a log, or a file beside the keys, has."""
    stored = stored_of(world)
    return [name for name in names if any(form in stored for form in forms(name))]


def tokens(world: SealedPartition) -> list[str]:
    return [event.session for event in world.events(SessionOpened) if is_token(event.session)]


@runs(in_two_named_logs)
async def test_each_log_has_tokens_that_belong_to_it(
    here: SealedPartition, there: SealedPartition
) -> None:
    names = [phone(world, f"phone-{at}-") for at in range(20) for world in (here, there)]
    for at, name in enumerate(names):
        world = (here, there)[at % 2]
        client = await enter(world, name)
        client.drop()
        await world.go(0.2)
    for number, world in enumerate((here, there)):
        assert len({*tokens(world)}) == 20
        assert {partition_of(token, 2) for token in tokens(world)} == {number}
        assert not readable(world, ANNA, *names)
    users = {event.user for world in (here, there) for event in world.events(SessionOpened)}
    assert len({user for user in users if user is not None and is_token(user)}) == 2
    for world in (here, there):
        await world.crash()
        await world.start()
    again = await enter(here, names[0])
    assert tokens(here)[-1] == tokens(here)[0]
    again.drop()


@runs(in_two_named_logs)
async def test_an_identifier_that_looks_like_a_token_belongs_to_its_log(
    here: SealedPartition, there: SealedPartition
) -> None:
    for world in (here, there):
        for at in range(6):
            client = await enter(world, phone(world, f"~pump-{at}-"), None)
            client.drop()
            await world.go(0.2)
    assert len(tokens(here)) == len(tokens(there)) == 6


@runs(in_two_named_logs)
async def test_a_user_is_erased_in_all_logs(here: SealedPartition, there: SealedPartition) -> None:
    clients = [await enter(world, phone(world)) for world in (here, there)]
    await enter(there, name_in(there.all, 1, "pump"), "carl")
    for world in (here, there):
        plan = await ask(world, "erasures.name", kind=USER, name=ANNA)
        assert plan["total"] == 1
        done = await erase(world, USER, ANNA)
        assert (done["keys"], done["sessions"]) == (1, 1)
        await world.go(1)
    assert not any(client.open for client in clients)
    assert not readable(here, ANNA)
    assert not readable(there, ANNA)
    assert list(there.broker.node.state.sessions.names()) == [name_in(there.all, 1, "pump")]


@pytest.mark.parametrize("kind", [CLIENT, USER])
@runs(in_two_named_logs)
async def test_a_log_that_is_away_erases_a_name_at_its_start(
    here: SealedPartition, there: SealedPartition, *, kind: str
) -> None:
    name = phone(there)
    first = await enter(there, name)
    first.drop()
    (token,) = tokens(there)
    await there.crash()
    await enter(here, phone(here))
    asked = name if kind == CLIENT else ANNA
    await erase(here, kind, asked, logs=[there.name])
    assert not readable(here, asked)
    assert len(stored_requests(there.path)) == 1
    await there.start()
    await there.go(2)
    assert stored_requests(there.path) == []
    (request,) = there.events(ErasureRequested)
    assert request.by == "ann@desk"
    assert len(there.events(Erased)) == 1
    assert token not in there.broker.node.state.sessions
    assert there.keys.key(request.keys[0]) is None
    await enter(there, name)
    assert (tokens(there)[-1] != token) == (kind == CLIENT)


@runs(in_two_named_logs)
async def test_a_broker_that_had_just_begun_is_told_too(
    here: SealedPartition, there: SealedPartition
) -> None:
    client = await enter(there, phone(there))
    await enter(here, phone(here))
    await erase(here, USER, ANNA, logs=[there.name])
    await there.go(10)
    assert not client.open
    assert stored_requests(there.path) == []


@runs(in_two_named_logs)
async def test_an_error_of_the_disk_loses_no_request(
    here: SealedPartition, there: SealedPartition, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = 4
    erase_keys = Keys.erase

    def failing(self: Keys, numbers: Iterable[int], erasure: int) -> None:
        nonlocal errors
        errors -= 1
        if errors >= 0:
            raise KeyFileError("no space left")
        erase_keys(self, numbers, erasure)

    reader = await away(there)
    await publish(here, (ALICE, SECRET))
    await there.go(2)
    client = await enter(there, phone(there))
    await erase(here, USER, ANNA, logs=[there.name])
    monkeypatch.setattr(Keys, "erase", failing)
    await there.go(12)
    assert 0 < errors < 4
    assert len(stored_requests(there.path)) == 1
    await there.go(30)
    (request,) = there.events(ErasureRequested)
    assert [event.erasure for event in there.events(Erased)] == [request.erasure]
    assert there.keys.key(request.keys[0]) is None
    assert stored_requests(there.path) == []
    assert not client.open
    await change(here, "erase", filter="home/#")
    await there.go(2)
    assert SECRET not in there.readable()
    assert await received(there, reader) == []


def test_a_leader_that_was_replaced_keeps_the_requests(tmp_path: Path) -> None:
    """It may not know the newest names: only a record of its own shows that it leads."""

    async def carry_out() -> None:
        proofs: list[object] = []
        key_file = tmp_path / "keys-p1"
        store_request(NameRequest.of(USER, ANNA, "ann"), key_file)
        failed = asyncio.get_running_loop().create_future()
        node = SimpleNamespace(
            log=SimpleNamespace(keys=SimpleNamespace(path=key_file)),
            names=SimpleNamespace(entries=list),
            state=SimpleNamespace(epoch=3, keys=SimpleNamespace(pending=[])),
            journal=SimpleNamespace(end=2, durable=1),
            kernel=SimpleNamespace(wake=lambda: failed.set_result(FoldmqError("replaced"))),
            exchange=True,
            emit=proofs.append,
            failed=failed,
        )
        with pytest.raises(FoldmqError, match="replaced"):
            await erasure.Erasure(cast("NodeContext", node)).carry_out_requests()
        assert proofs == [LeaderProved(3)]
        assert len(stored_requests(key_file)) == 1

    asyncio.run(carry_out())


STEPS = 12


@pytest.mark.parametrize("step", range(STEPS))
@runs(in_two_named_logs)
async def test_a_kill_at_any_step_loses_no_request(
    here: SealedPartition, there: SealedPartition, *, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step of the disk, and each turn behind it, may be the end."""
    left = step

    async def failing(work: Any, *arguments: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            work(*arguments)
        if left < 0 or left == 0:
            raise KeyFileError("killed")
        return work(*arguments)

    async def whole(work: Any, *arguments: Any) -> Any:
        return work(*arguments)

    names = [phone(there), phone(there, "phone-bob-7f3a-")]
    for name in names:
        client = await enter(there, name)
        client.drop()
    before = there.path.read_bytes()
    await there.crash()
    for kind, name in ((CLIENT, names[0]), (USER, ANNA)):
        await erase(here, kind, name, logs=[there.name])
    left = step
    monkeypatch.setattr(erasure, "in_thread", failing)
    try:
        await there.start()
        await there.go(0.01 * step)
    except EventStoreError:
        pass
    await there.crash(step % 2)
    monkeypatch.setattr(erasure, "in_thread", whole)
    await there.start()
    await there.go(2)
    assert stored_requests(there.path) == []
    assert len(there.broker.node.state.sessions) == 0
    asked = there.events(ErasureRequested)
    assert [one.erasure for one in asked] == [1, 2]
    assert [event.erasure for event in there.events(Erased)] == [1, 2]
    for request in asked:
        (number,) = request.keys
        key = before[128 + 64 * (number - 1) :][:32]
        assert key not in there.path.read_bytes()
    kept = {number for each in there.events(TopicsKeyed) for number in each.keys} - {
        number for each in asked for number in each.keys
    }
    assert all(there.keys.key(number) for number in kept)
    assert not readable(there, *names, ANNA)


@runs(in_two_named_logs)
async def test_what_cannot_be_asked_for_is_refused(
    here: SealedPartition, there: SealedPartition
) -> None:
    for logs in (["other"], [here.name], there.name):
        with pytest.raises(Refused, match="logs must be names of other logs"):
            await erase(here, USER, ANNA, logs=logs)
    broken = there.path.with_name(f"{there.path.name}.erase-0")
    broken.write_bytes(b"x")
    with pytest.raises(KeyFileError, match="remove it, and erase the name again"):
        stored_requests(there.path)
    broken.unlink()
    (there.path.with_name(f"{there.path.name}.erase-1.new")).write_bytes(b"")
    assert stored_requests(there.path) == []
    assert isinstance(here.broker.node.names, PersonalNames)
