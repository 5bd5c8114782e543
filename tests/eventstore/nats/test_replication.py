"""Streams with replicas in a cluster of real servers, and refused configurations."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import nats
import nats.errors
import orjson
import pytest
import pytest_asyncio
from harness.broker import free_port
from harness.certs import Authority
from harness.nats import PASSWORD, USER
from harness.natscluster import NatsCluster
from harness.waiting import TIMEOUT, happens
from linked import Nats

from eventstore.errors import LostLog, NatsTooOld, NatsUnavailable, TooManyReplicas
from eventstore.log.keyed_store import KeyedStore
from eventstore.log.record_reader import read_stored
from eventstore.nats import replication
from eventstore.nats.connection import ConnectionOptions, connect, disconnect, require_version
from eventstore.nats.direct_client import DirectClient
from eventstore.nats.jetstream import check_jetstream, read_info
from eventstore.nats.log_stream import ensure_stream
from eventstore.nats.replication import REPLICATED_VERSION

pytestmark = pytest.mark.system

NAME, SUBJECT = "FOLDMQ_LOG_a", "foldmq.log.a"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    made = NatsCluster(tmp_path_factory.mktemp("cluster"))
    try:
        made.start()
        yield made
    finally:
        made.close()


def options_for(cluster: NatsCluster, **more: Any) -> ConnectionOptions:
    urls = tuple(cluster.url.split(","))
    return ConnectionOptions(urls=urls, user=USER, password=PASSWORD, **more)


@pytest_asyncio.fixture
async def client(cluster: NatsCluster) -> AsyncIterator[DirectClient]:
    made = await connect(options_for(cluster))
    try:
        yield made
    finally:
        for name in (NAME, "STATE"):
            await made.request(f"$JS.API.STREAM.DELETE.{name}", b"", timeout=TIMEOUT)
        await disconnect(made)


async def interest(client: DirectClient, subject: str) -> None:
    """Wait until our server knows that a new stream of the cluster takes ``subject``.

    The leader of the stream notifies the others after JetStream has answered.
    """
    async with asyncio.timeout(TIMEOUT):
        while True:
            with contextlib.suppress(nats.errors.NoRespondersError):
                # A stream refuses this without storing it, since its name is another.
                headers = {"Nats-Expected-Stream": "none"}
                await client.request(subject, b"", timeout=TIMEOUT, headers=headers)
                return
            await asyncio.sleep(0.02)


async def test_three_replicas_where_there_are_three_servers(client: DirectClient) -> None:
    made = await ensure_stream(client, NAME, [SUBJECT])
    assert (made.created, made.replicas) == (True, 3)
    async with asyncio.timeout(TIMEOUT):
        while "(behind)" in made.servers:  # for a moment, on a busy machine
            await asyncio.sleep(0.05)
            made = await ensure_stream(client, NAME, [SUBJECT])
    assert sorted(made.servers.split(", ")) == ["n0", "n1", "n2"]
    assert "on a majority of 3 servers" in made.promise
    assert (await ensure_stream(client, NAME, [SUBJECT], replicas=1)).replicas == 3


async def test_more_replicas_than_servers_are_refused(client: DirectClient) -> None:
    with pytest.raises(
        TooManyReplicas, match=r"nats_replicas = 5: .* cannot hold that many"
    ) as new:
        await ensure_stream(client, NAME, [SUBJECT], replicas=5)
    assert new.value.exit_code == 78
    await ensure_stream(client, NAME, [SUBJECT], replicas=1)
    with pytest.raises(TooManyReplicas, match=r"nats_replicas = 5: .* cannot hold that many"):
        await ensure_stream(client, NAME, [SUBJECT], replicas=5)


async def test_a_log_with_one_replica_gets_three_if_configured(client: DirectClient) -> None:
    await ensure_stream(client, NAME, [SUBJECT], replicas=1)
    await interest(client, SUBJECT)
    for number in range(20):
        await client.request(SUBJECT, b"%d" % number, timeout=TIMEOUT)
    assert (await ensure_stream(client, NAME, [SUBJECT])).replicas == 1
    grown = await ensure_stream(client, NAME, [SUBJECT], replicas=3)
    assert (grown.created, grown.replicas, grown.last_seq) == (False, 3, 20)
    while True:
        others = (await read_info(client, NAME))["cluster"]["replicas"]
        if [one["current"] for one in others] == [True, True]:
            break
        await asyncio.sleep(0.1)


async def test_projections_get_as_many_replicas(client: DirectClient) -> None:
    """Those of one replica are written in a way that replicas do not allow."""
    for replicas in (1, 3):
        store = KeyedStore(client, "STATE", "state.", replicas=replicas)
        await store.open()
        assert (await read_info(client, "STATE"))["config"]["num_replicas"] == replicas
        await interest(client, "state.a")
        assert await store.confirm("a", b"1", await store.last())
    await KeyedStore(client, "STATE", "state.", replicas=1).open()
    async with asyncio.timeout(TIMEOUT):
        # A replica that is behind on a busy machine may be the one that is read.
        while (found := [data async for _, data in store.read()]) != [b"1"]:
            assert not found
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("version", "good"),
    [("2.14.6", False), ("2.12.8", False), ("2.15.0", True), ("v2.16.0-rc.1", True), ("x", False)],
)
def test_versions_that_keep_replicas_equal(version: str, good: bool) -> None:
    with contextlib.nullcontext() if good else pytest.raises(NatsTooOld):
        require_version(version, REPLICATED_VERSION, "the NATS server", "", "")


async def test_a_server_too_old_for_replicas_is_refused(
    client: DirectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ensure_stream(client, NAME, [SUBJECT])
    monkeypatch.setattr(client._current_server, "server_version", "2.14.6")
    with pytest.raises(NatsTooOld) as caught:
        await ensure_stream(client, NAME, [SUBJECT])
    assert str(caught.value) == (
        "the NATS server is version 2.14.6, at least 2.15.0 for 3 replicas is needed (before, a "
        "restarted replica can reject records forever without an error): upgrade it, or keep the "
        "log in one replica"
    )
    assert caught.value.exit_code == 69


async def test_a_log_on_servers_too_old_begins_with_one_replica(
    client: DirectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client._current_server, "server_version", "2.14.6")
    with pytest.raises(NatsTooOld):
        await ensure_stream(client, NAME, [SUBJECT], replicas=3)
    assert (await ensure_stream(client, NAME, [SUBJECT])).replicas == 1


async def test_another_server_of_the_cluster_is_too_old(
    client: DirectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that is connected is new, one that a reconnect may lead to is not."""

    async def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"INFO " + orjson.dumps({"version": "2.12.8"}) + b"\r\n")
        await writer.drain()
        writer.close()

    old = await asyncio.start_server(greet, "127.0.0.1", 0)
    host, port = old.sockets[0].getsockname()
    async with old:
        servers = [*client._server_pool]
        gone = type(servers[0])(servers[0].uri._replace(netloc=f"127.0.0.1:{free_port()}"))
        added = type(servers[0])(servers[0].uri._replace(netloc=f"{host}:{port}"))
        monkeypatch.setattr(client, "_server_pool", [*servers, gone, added])
        with pytest.raises(NatsTooOld, match=f"the NATS server at {host}:{port} is version 2.12.8"):
            await ensure_stream(client, NAME, [SUBJECT], replicas=3)
        await replication.check_all_servers(client, 1)


async def test_a_server_that_is_left_is_not_chosen_again(
    cluster: NatsCluster, client: DirectClient
) -> None:
    used = []
    for _ in range(6):
        used.append(client.connected_url.netloc)
        await client.change_server()
        await happens(lambda: client.is_connected)
        await asyncio.sleep(0.1)  # until the callback of nats-py has run
    assert used[:3] == used[3:]
    assert len(set(used)) == 3


async def test_a_domain_that_no_server_has(cluster: NatsCluster) -> None:
    client = await connect(options_for(cluster, domain="hub"))
    try:
        with pytest.raises(NatsUnavailable, match="no NATS server has JetStream in the domain hub"):
            await check_jetstream(client)
    finally:
        await disconnect(client)


async def test_a_log_in_the_domain_of_a_hub(tmp_path: Path, servers: list[Nats]) -> None:
    """The node is connected to a leaf node, which has a JetStream of its own."""
    port = free_port()
    hub = Nats(
        tmp_path,
        server_name="hub",
        jetstream={"store_dir": str(tmp_path / "hub"), "domain": "hub"},
        leafnodes={"host": "127.0.0.1", "port": port},
    )
    leaf = Nats(
        tmp_path,
        server_name="leaf",
        jetstream={"store_dir": str(tmp_path / "leaf"), "domain": "leaf"},
        leafnodes={"remotes": [{"url": f"nats-leaf://127.0.0.1:{port}"}]},
    )
    servers += [hub, leaf]
    for server in servers:
        await server.start()
    here = await connect(ConnectionOptions(urls=(leaf.url,), domain="hub"))
    try:
        while True:  # until the leaf node has found its hub
            try:
                await check_jetstream(here)
                break
            except NatsUnavailable:
                await asyncio.sleep(0.05)
        await ensure_stream(here, NAME, [SUBJECT])
        store = KeyedStore(here, "STATE", "state.")
        await store.open()
        await interest(here, "state.a")
        assert await store.confirm("a", b"1", 0)
        assert [data async for _, data in store.read()] == [b"1"]
        await interest(here, SUBJECT)
        stored = orjson.loads((await here.request(SUBJECT, b"record", timeout=TIMEOUT)).data)
        assert (stored["seq"], stored["domain"]) == (1, "hub")
        assert [found async for found in read_stored(here, NAME, 1, 1)] == [(1, b"record")]
    finally:
        await disconnect(here)
    there = await connect(ConnectionOptions(urls=(leaf.url,), domain="leaf"))
    with pytest.raises(LostLog):
        await read_info(there, NAME)
    await disconnect(there)


async def test_several_servers_with_tls_and_a_password(tmp_path: Path, servers: list[Nats]) -> None:
    """Each shows a certificate of its own; the first of the list does not run."""
    authority = Authority(tmp_path)
    pair = authority.server()
    files = {"cert_file": str(pair.certificate), "key_file": str(pair.key)}
    access = {"user": USER, "password": PASSWORD}
    servers += [Nats(tmp_path, tls=files, authorization=access) for _ in range(2)]
    for server in servers:
        await server.start()
    urls = [f"tls://127.0.0.1:{free_port()}", *(one.url.replace("nats", "tls") for one in servers)]
    options = ConnectionOptions(urls=tuple(urls), **access, tls_ca=authority.file)
    client = await connect(options)
    try:
        used = []
        for _ in range(3):
            used.append(client.connected_url.port)
            (here,) = [one for one in servers if one.port == used[-1]]
            here.kill()
            await happens(lambda: client.is_connected and client.connected_url.port != used[-1])
            await here.start()
        assert used[0] == used[2] != used[1]
    finally:
        await disconnect(client)
