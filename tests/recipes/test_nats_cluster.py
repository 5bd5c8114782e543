"""The recipe beside a NATS cluster: an account for the log, the bridge in that of the programs."""

import asyncio
import json
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from harness import packets
from harness.broker import free_port
from harness.packets import Connack
from harness.rawclient import RawClient
from harness.waiting import until
from nats.errors import NoRespondersError

from recipes.natsservers import NETWORK, NatsServer, address
from recipes.recipefiles import PASSWORD, RECIPES, RecipeBroker, broker_of

SECRETS = {"nats-password": "change-this", "bridge-password": "change-this-too"}
NUMBERS = (1, 2, 3)


def existing(folder: Path, number: int) -> str:
    """The configuration of a server of the cluster, which includes the recipe's file."""
    routes = json.dumps([f"nats-route://{address(one)}:6222" for one in NUMBERS])
    accounts = RECIPES / "nats-cluster" / "accounts.conf"
    (folder / "accounts.conf").write_text(accounts.read_text("utf-8"))
    return (
        f"server_name: n{number}\nlisten: {address(number)}:4222\nmax_payload: 4MB\n"
        f"jetstream {{ store_dir: {folder}/store, sync_interval: always }}\n"
        f"cluster {{ name: c, listen: {address(number)}:6222, routes: {routes} }}\n"
        "include accounts.conf\n"
    )


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[NatsServer]]:
    made = []
    for number in NUMBERS:
        folder = tmp_path / f"n{number}"
        folder.mkdir()
        made.append(NatsServer(folder, number, existing(folder, number)))
    try:
        for server in made:
            server.start()
        for server in made:
            server.wait()
        yield made
    finally:
        for server in made:
            server.kill()


@pytest.fixture
def broker(tmp_path: Path, servers: list[NatsServer]) -> Iterator[RecipeBroker]:
    port = free_port()
    hosts = {f"n{number}:4222": f"{address(number)}:4222" for number in NUMBERS}
    changes = {"0.0.0.0:1883": f"127.0.0.1:{port}", **hosts}
    made = broker_of(tmp_path / "foldmq", "nats-cluster", changes, ("ann",), port=port)
    for name, secret in SECRETS.items():
        file = made.directory / name
        file.touch(0o600)
        file.write_text(f"{secret}\n")
    made.start()
    yield made
    made.clean_up()


def as_program(work: Any) -> Any:
    """Run work with a NATS client of the user ``app``."""

    async def connected() -> Any:
        client = await nats.connect(
            [f"nats://{address(number)}:4222" for number in NUMBERS],
            user="app",
            password="the-password-of-your-programs",
        )
        try:
            return await work(client)
        finally:
            await client.close()

    done: Coroutine[Any, Any, Any] = connected()
    return asyncio.run(done)


def test_programs_and_devices_exchange_messages(broker: RecipeBroker) -> None:
    assert NETWORK in broker.log
    assert "3 replicas" in broker.log
    device = RawClient(broker.port)
    login = {"username": "ann", "password": PASSWORD.encode()}
    assert device.connect("device", **login) == Connack(0, False)  # type: ignore[arg-type]
    assert device.subscribe(("commands/pump", 1)) == (1,)

    async def work(client: Any) -> list[tuple[str, bytes]]:
        reader = await client.subscribe(">")
        await client.flush()
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, device.publish, "sensors/a", b"21", 1)
        await loop.run_in_executor(None, device.publish, "private/a", b"secret", 1)
        await loop.run_in_executor(None, device.publish, "sensors/b", b"22", 1)
        found: list[tuple[str, bytes]] = []
        while len(found) < 2:
            message = await reader.next_msg(30)
            found.append((message.subject, message.data))
        await reader.unsubscribe()
        headers = {"Foldmq-QoS": "1"}
        deadline = loop.time() + 30
        while True:
            try:
                answer = await client.request("commands.pump", b"on", 10, headers=headers)
                break
            except NoRespondersError:
                assert loop.time() < deadline
        assert json.loads(answer.data)["seq"] > 0
        return found

    assert as_program(work) == [("sensors.a", b"21"), ("sensors.b", b"22")]
    device.acknowledge(device.expect_publish("commands/pump", b"on", 1))
    device.close()


def test_programs_do_not_reach_the_log(broker: RecipeBroker) -> None:
    """It is in another account: theirs has no JetStream."""

    async def work(client: Any) -> Any:
        return json.loads((await client.request("$JS.API.STREAM.NAMES", b"", 10)).data)

    assert "not enabled for account" in as_program(work)["error"]["description"]


def test_a_lost_server_loses_nothing(broker: RecipeBroker, servers: list[NatsServer]) -> None:
    login = {"username": "ann", "password": PASSWORD.encode()}
    reader = RawClient(broker.port)
    assert reader.connect("reader", clean=False, **login) == Connack(0, False)  # type: ignore[arg-type]
    assert reader.subscribe(("sensors/#", 1)) == (1,)
    servers[1].kill()
    with RawClient(broker.port) as writer:
        assert writer.connect("writer", **login) == Connack(0, False)  # type: ignore[arg-type]
        packet_id = writer.next_id()
        writer.send(packets.publish("sensors/a", b"1", 1, packet_id))
        until(lambda: acknowledged(writer), "PUBACK")
    reader.acknowledge(reader.expect_publish("sensors/a", b"1", 1))
    reader.close()


def acknowledged(client: RawClient) -> bool:
    """Whether the acknowledgement has come: the cluster may elect a leader first."""
    try:
        client.receive(1)
    except TimeoutError:
        return False
    return True
