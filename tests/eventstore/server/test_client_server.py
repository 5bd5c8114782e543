"""The NATS server for clients: admission, and the isolation of the log."""

import asyncio
import json
import os
import signal
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as RequestTimeout
from nats.js.errors import APIError, ServiceUnavailableError

from eventstore.datadir import DataDir
from eventstore.errors import DataDirBusy, NatsUnavailable
from eventstore.nats.connection import ConnectionOptions, connect
from eventstore.nats.log_stream import ensure_stream
from eventstore.server.client_server import DIRECTORY, ClientServer
from eventstore.server.embedded_server import EmbeddedServer
from eventstore.server.users_file import NatsUser

pytestmark = pytest.mark.system

NKEY = "UAB2CB576PHBBPQ5ODORRZ2LYCMWPZGWGCN2KDK7DXOIMZASKUY3RLKK"
SEED = "SUAAAAICAMCAKBQHBAEQUCYMBUHA6EARCIJRIFIWC4MBSGQ3DQOR4H776Y"
HASH = "$2b$04$abcdefghijklmnopqrstuu5vI3ZRTjKCPRqBc8t0Ueb2foafP8H66"
"""Of "rosebud"."""
USERS = (
    NatsUser("alice", 'p"a\\ss:$wörd'),
    NatsUser("bob", HASH),
    NatsUser("carl", HASH.replace("$2b$", "$2y$")),
    NatsUser(nkey=NKEY),
)
LOG, SUBJECT = "FOLDMQ_LOG_a", "foldmq.log.a"


def made(datadir: DataDir, **changes: Any) -> ClientServer:
    given = {"max_payload": 1 << 20, "store": 1 << 20, **changes}
    return ClientServer(datadir, given.pop("host", "127.0.0.1"), given.pop("port", 0), **given)


@asynccontextmanager
async def running(datadir: DataDir, **changes: Any) -> AsyncIterator[ClientServer]:
    server = made(datadir, **changes)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def client_at(url: str, **who: Any) -> AsyncIterator[Client]:
    client = await connect(ConnectionOptions(urls=(url,), **who))
    try:
        yield client
    finally:
        await client.close()


async def refused(url: str, **who: Any) -> None:
    with pytest.raises(NatsUnavailable, match="rejects our credentials"):
        await connect(ConnectionOptions(urls=(url,), **who))


async def until_served(url: str) -> Client:
    """A client connected to a server that may just have restarted."""
    while True:
        try:
            return await connect(ConnectionOptions(urls=(url,)))
        except NatsUnavailable:
            continue


# ------------------------------------------------------------------------ access


async def test_users_of_all_kinds_and_no_others_can_connect(
    datadir: DataDir, tmp_path: Path
) -> None:
    seed = tmp_path / "seed"
    seed.write_text(SEED)
    async with running(datadir, users=USERS) as server:
        for who in (
            {"user": "alice", "password": 'p"a\\ss:$wörd'},
            {"user": "bob", "password": "rosebud"},
            {"user": "carl", "password": "rosebud"},
            {"nkey_seed": seed},
            {"user": server.user, "password": server.password},
        ):
            async with client_at(server.url, **who) as client:
                assert client.is_connected
        for bad in (
            {},
            {"user": "alice", "password": "rosebud"},
            {"user": "bob", "password": HASH},
            {"user": "dora", "password": "rosebud"},
            {"user": server.user, "password": "rosebud"},
            {"user": NKEY, "password": ""},
        ):
            await refused(server.url, **bad)


async def test_without_users_only_anonymous_clients_can_connect(datadir: DataDir) -> None:
    async with running(datadir) as server:
        async with client_at(server.url) as client:
            await client.publish("a", b"")
            await client.flush()
        await refused(server.url, user="anybody", password="anybody")
        await refused(server.url, user=server.user, password="x")


async def test_clients_and_the_bridge_meet(datadir: DataDir) -> None:
    async with (
        running(datadir, users=USERS) as server,
        client_at(server.url, user="bob", password="rosebud") as client,
        client_at(server.url, user=server.user, password=server.password) as bridge,
    ):
        got = await bridge.subscribe("plant.>")
        await bridge.flush()
        await client.publish("plant.1", b"here")
        assert (await got.next_msg(5)).data == b"here"


async def test_secrets_are_private(datadir: DataDir) -> None:
    async with running(datadir, users=USERS):
        folder = datadir.path / DIRECTORY
        for name in ("nats.conf", "nats.credentials"):
            assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


# ------------------------------------------------------------------------ the address


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "nats://127.0.0.1:"),
        ("0.0.0.0", "nats://127.0.0.1:"),
        ("localhost", "nats://localhost:"),
        ("::1", "nats://[::1]:"),
        ("::", "nats://[::1]:"),
    ],
)
async def test_addresses(datadir: DataDir, host: str, url: str) -> None:
    if ":" in host:
        with socket.socket(socket.AF_INET6) as probe:
            try:
                probe.bind(("::1", 0))
            except OSError:
                pytest.skip("this machine has no IPv6")
    async with running(datadir, host=host) as server:
        assert server.url.startswith(url)
        assert server.address == (host, int(server.url.rpartition(":")[2]))
        async with client_at(server.url):
            pass


async def test_a_given_port_is_that_port_and_any_port_stays(datadir: DataDir) -> None:
    async with running(datadir) as server:
        chosen = server.address[1]
    async with running(datadir) as server:
        assert server.address[1] == chosen
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with running(datadir, port=port) as server:
        assert server.address == ("127.0.0.1", port)


async def test_a_taken_port_is_one_line(datadir: DataDir) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        with pytest.raises(NatsUnavailable, match="another program listens there") as caught:
            await made(datadir, port=port).start()
    assert caught.value.exit_code == 69
    assert f"127.0.0.1 port {port}" in str(caught.value)
    async with running(datadir, port=port):
        pass  # and the directory is free again


async def test_an_error_of_the_probe_ends_the_start(datadir: DataDir) -> None:
    def probe() -> None:
        raise NatsUnavailable("not there")

    with pytest.raises(NatsUnavailable, match=r"^not there$"):
        await made(datadir, probe=probe).start()
    async with running(datadir):
        pass


async def test_its_directory_is_locked(datadir: DataDir) -> None:
    async with running(datadir):
        with pytest.raises(DataDirBusy):
            await made(datadir).start()


async def test_killed_it_comes_back_at_its_address(datadir: DataDir) -> None:
    lines: list[str] = []
    async with running(datadir, log=lines.append) as server:
        url = server.url
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        client = await asyncio.wait_for(until_served(url), 20)
        await client.close()
    assert lines == ["NATS server for clients ended (signal 9), restarting it"]


# ------------------------------------------------------------------------ JetStream of the clients


async def published(client: Client, subject: str, count: int) -> None:
    for _ in range(count):
        await client.jetstream().publish(subject, bytes(1 << 18))


async def test_streams_of_clients_stay_and_are_bounded(datadir: DataDir) -> None:
    async with running(datadir, store=1 << 20) as server, client_at(server.url) as client:
        js = client.jetstream()
        await js.add_stream(name="KEPT", subjects=["kept.>"])
        await js.publish("kept.a", b"here")
        with pytest.raises(APIError, match="insufficient"):
            await published(client, "kept.b", 8)
    async with running(datadir, store=1 << 20) as server, client_at(server.url) as client:
        assert (await client.jetstream().get_msg("KEPT", 1)).data == b"here"
        with pytest.raises(APIError):
            await client.jetstream().add_stream(name="BIG", subjects=["big"], max_bytes=2 << 20)


async def test_without_room_they_have_no_jetstream(datadir: DataDir) -> None:
    async with running(datadir, store=0) as server, client_at(server.url) as client:
        with pytest.raises(ServiceUnavailableError):
            await client.jetstream().account_info()
        assert not (datadir.path / DIRECTORY / "jetstream").exists()


# ------------------------------------------------------------------------ the log is out of reach


async def append(client: Client) -> int:
    reply = json.loads((await client.request(SUBJECT, b"record", timeout=5)).data)
    return int(reply["seq"])


async def log_client(server: EmbeddedServer) -> Client:
    return await connect(
        ConnectionOptions(urls=(server.url,), user=server.user, password=server.password)
    )


ATTACKS = (
    (SUBJECT, b"forged"),
    ("foldmq.state.a.x", b"forged"),
    (f"$JS.API.STREAM.DELETE.{LOG}", b""),
    (f"$JS.API.STREAM.PURGE.{LOG}", b"{}"),
    (f"$JS.API.STREAM.MSG.DELETE.{LOG}", b'{"seq": 1}'),
    (f"$JS.API.STREAM.MSG.GET.{LOG}", b'{"seq": 1}'),
    (f"$JS.API.DIRECT.GET.{LOG}", b'{"seq": 1}'),
    (f"$JS.API.STREAM.INFO.{LOG}", b""),
    ("foldmq.inspect.a.overview", b"{}"),
    ("$SYS.REQ.SERVER.PING", b""),
)


NO_SUCH_STREAM = 10059


async def answered(client: Client, subject: str, data: bytes) -> object:
    """The code of the error that answers a request, None without an answer."""
    try:
        answer = await client.request(subject, data, timeout=5)
    except (NoRespondersError, RequestTimeout):
        return None
    return json.loads(answer.data)["error"]["err_code"]


@pytest.mark.parametrize("who", ["anybody", "a user"])
async def test_a_client_neither_reads_nor_writes_the_log(datadir: DataDir, who: str) -> None:
    users = USERS if who == "a user" else ()
    access = {"user": "bob", "password": "rosebud"} if users else {}
    log = EmbeddedServer(datadir)
    await log.start()
    seen: list[str] = []

    async def note(message: Any) -> None:
        seen.append(message.subject)

    try:
        owner = await log_client(log)
        await ensure_stream(owner, LOG, [SUBJECT])
        async with (
            running(datadir, users=users) as server,
            client_at(server.url, **access) as listener,
            client_at(server.url, **access) as attacker,
        ):
            everything = (">", "foldmq.>", "$JS.>", "$JS.API.>", "_INBOX.>", "$SYS.>")
            ears = [await listener.subscribe(subject, cb=note) for subject in everything]
            await listener.flush()
            for _ in range(5):
                await append(owner)
            await listener.flush()
            assert seen == []
            for ear in ears:  # otherwise there would be a responder
                await ear.unsubscribe()
            await listener.flush()
            for subject, data in ATTACKS:
                assert await answered(attacker, subject, data) in (None, NO_SUCH_STREAM), subject
            # a stream of the log's name and subject is the client's own
            own = attacker.jetstream()
            await own.add_stream(name=LOG, subjects=["foldmq.>"])
            await append(owner)
            assert (await own.stream_info(LOG)).state.messages == 0
            await own.delete_stream(LOG)
            state = await ensure_stream(owner, LOG, [SUBJECT], must_exist=True)
            assert (state.first_seq, state.last_seq) == (1, 6)
            # what lets one in at one server does not at the other
            await refused(log.url, **access)
            await refused(log.url, user=server.user, password=server.password)
            await refused(server.url, user=log.user, password=log.password)
        await owner.close()
    finally:
        await log.stop()


async def test_a_log_is_found_before_during_and_after_client_access(datadir: DataDir) -> None:
    async def life(expected: int, *, opened: bool) -> None:
        log = EmbeddedServer(datadir)
        await log.start()
        try:
            assert log.stored_streams() == ({LOG} if expected else set())
            client = await log_client(log)
            state = await ensure_stream(client, LOG, [SUBJECT], must_exist=bool(expected))
            assert state.last_seq == expected
            if opened:
                async with running(datadir, users=USERS):
                    assert await append(client) == expected + 1
            else:
                assert await append(client) == expected + 1
            await client.close()
        finally:
            await log.stop()

    for count, opened in enumerate((False, True, True, False, True)):
        await life(count, opened=opened)
