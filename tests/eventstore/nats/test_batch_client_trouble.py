"""Batch clients with servers that refuse, stop, use TLS, are many, or are no NATS servers."""

import asyncio
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from harness.broker import free_port
from harness.waiting import happens
from linked import Linked, Nats, render_hpub

from eventstore.errors import NatsUnavailable
from eventstore.nats.batch_client import encode_pub

pytestmark = pytest.mark.system

Start = Callable[..., Awaitable[Nats]]
ACCESS = {"user": "bridge", "password": "secret"}


async def test_a_server_that_stops_reading(start: Start) -> None:
    """Nothing blocks and nothing is lost, and the pending bytes are reported."""
    nats = await start()
    much = 4 << 20
    here, there = await Linked.to(nats.url), await Linked.to(nats.url)
    there.link.subscribe(b"a")
    await there.settled()
    sent = 0

    async def write_until(full: Callable[[], bool]) -> None:
        nonlocal sent
        while not full():
            here.link.write(
                [encode_pub(b"a", b"%08d" % (sent + n) + bytes(992)) for n in range(64)]
            )
            sent += 64
            await asyncio.sleep(0)

    for _ in range(2):
        nats.signal(signal.SIGSTOP)
        await write_until(lambda: here.link.unsent > much)
        nats.signal(signal.SIGCONT)
        await here.settled()
        assert here.link.unsent == 0
    await there.came(sent)
    assert [int(payload[:8]) for payload in there.payloads] == list(range(sent))


async def test_leaving_a_server_that_stopped_reading(start: Start) -> None:
    nats = await start()
    here = await Linked.to(nats.url)
    nats.signal(signal.SIGSTOP)
    while here.link.unsent < 8 << 20:
        here.link.write(encode_pub(b"a", bytes(1 << 20)))
        await asyncio.sleep(0)
    await here.link.close()
    assert here.link.unsent == 0
    assert here.notices == []


async def test_the_first_server_is_not_there(start: Start) -> None:
    nats = await start()
    here = await Linked.to(f"nats://127.0.0.1:{free_port()}", nats.url)
    assert here.link.connected
    await here.settled()


async def test_another_server_of_the_cluster_takes_over(
    tmp_path: Path, servers: list[Nats]
) -> None:
    """Only one server is named; the other is learnt from it."""
    routes = [free_port(), free_port()]
    for number, port in enumerate(routes):
        cluster = {
            "name": "two",
            "listen": f"127.0.0.1:{port}",
            "routes": [f"nats://127.0.0.1:{routes[1 - number]}"],
        }
        servers.append(Nats(tmp_path, server_name=f"server{number}", cluster=cluster))
    one, two = servers
    await one.start()
    here = await Linked.to(one.url)
    here.link.subscribe(b"a")
    await here.settled()
    await two.start()
    there = await Linked.to(two.url)
    await happens(lambda: len(here.link._client.servers) == 2)
    one.kill()
    await happens(lambda: here.notices == ["down", "up"])
    await here.settled()
    there.link.write(encode_pub(b"a", b"through the other"))
    await here.came(1)
    assert here.payloads == [b"through the other"]


async def test_user_and_password(start: Start) -> None:
    nats = await start(authorization=ACCESS)
    here = await Linked.to(nats.url, **ACCESS)
    await here.settled()
    await here.link.close()
    with pytest.raises(NatsUnavailable, match="rejects our credentials"):
        await Linked.to(nats.url, user="bridge", password="wrong")


async def test_access_that_is_withdrawn_and_given_back(start: Start) -> None:
    nats = await start(authorization=ACCESS)
    here = await Linked.to(nats.url, **ACCESS)
    nats.settings["authorization"] = {**ACCESS, "password": "other"}
    nats.kill()
    await happens(lambda: here.notices == ["down"])
    await nats.start()
    await happens(lambda: any("rejects our credentials" in line for line in here.problems))
    assert here.notices == ["down"]
    nats.settings["authorization"] = ACCESS
    nats.kill()
    await nats.start()
    await happens(lambda: here.notices == ["down", "up"])
    assert len(here.problems) == len(set(here.problems))


async def test_permission_errors_are_reported_once_per_connection(start: Start) -> None:
    permissions = {"publish": {"deny": ["no.>"]}, "subscribe": {"deny": ["no.>"]}}
    user = {**ACCESS, "permissions": permissions}
    nats = await start(authorization={"users": [user]})
    here, there = await Linked.to(nats.url, **ACCESS), await Linked.to(nats.url, **ACCESS)
    for linked in (here, there):
        linked.link.subscribe(b"no.a")
        linked.link.subscribe(b"yes")
        linked.link.subscribe(b"no.\x1b[31m")
        await linked.settled()
    for turn in range(1, 3):
        here.link.write(
            [encode_pub(b"no.b", b""), encode_pub(b"yes", b""), encode_pub(b"no.b", b"")]
        )
        await there.came(turn)
        await here.settled()
        assert there.messages[-1].subject == b"yes"
        nats.kill()
        await happens(lambda: not here.link.connected and not there.link.connected)
        await nats.start()
        await happens(lambda: here.link.connected and there.link.connected)
        await here.settled()
        await there.settled()
    assert here.notices == ["down", "up"] * 2, "a refusal is no end"
    told = [line for line in here.problems if "Violation" in line]
    subscriptions = ['Subscription to "no.a"', 'Subscription to "no.\\\\x1b[31m"']
    each = [*subscriptions, 'Publish to "no.b"']
    assert told == [
        f"NATS at {nats.url}: Permissions Violation for {what}"
        for what in (*each, *each, *subscriptions)
    ]
    assert here.refused == there.refused == ["no.a", "no.\x1b[31m"] * 3
    assert all(line.isprintable() for line in here.problems)


async def test_each_refused_subscription_is_reported(start: Start) -> None:
    """Of subjects of any length, with anything in them."""
    user = {**ACCESS, "permissions": {"subscribe": {"deny": ["no.>"]}}}
    nats = await start(authorization={"users": [user]})
    here = await Linked.to(nats.url, **ACCESS)
    subjects = ["no.a", f"no.{'x' * 2000}.a", 'no."\\', "no.\u202eé温🌡", "no.*.>"]
    for _ in range(2):
        for sid in [here.link.subscribe(subject.encode()) for subject in subjects]:
            here.link.unsubscribe(sid)
        await here.settled()
    assert here.refused == subjects * 2
    assert len(here.problems) == len(subjects)


async def test_refusals_are_reported_after_all_subscriptions_are_renewed(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    nats = await start()
    told: list[str] = []
    here = await Linked.to(nats.url)
    monkeypatch.setattr(here.link, "_on_up", lambda: told.append("up"))
    monkeypatch.setattr(here.link, "_on_refused", told.append)
    monkeypatch.setattr("eventstore.nats.batch_client._REPLAYED", 1)
    for _ in range(2):
        wire, here.link._connection = here.link._connection, None
        here.link.connected = False
        assert wire is not None
        here.link._on_connected()  # with the inbox, the first piece
        here.link.problem('Permissions Violation for Subscription to "a"')
        assert told == []
        await happens(lambda: here.link.connected)
        assert told == ["up", "a"]
        told.clear()


async def test_reported_problems_are_limited(start: Start) -> None:
    user = {**ACCESS, "permissions": {"publish": {"deny": ["no.>"]}}}
    nats = await start(authorization={"users": [user]})
    here = await Linked.to(nats.url, **ACCESS)
    here.link.write([encode_pub(b"no.%d" % number, b"") for number in range(500)])
    await here.settled()
    assert len(here.problems) == 101
    assert here.problems[-1] == f"NATS at {nats.url}: more such problems are not shown"


async def test_a_message_that_is_too_large(start: Start) -> None:
    """The server ends the connection; the link dials again."""
    nats = await start(max_payload=1000)
    here = await Linked.to(nats.url)
    assert here.link.max_payload == 1000
    here.link.write(render_hpub(b"a", b"", b"", bytes(1001)))
    await happens(lambda: here.notices == ["down", "up"])
    assert here.problems == [f"NATS at {nats.url}: Maximum Payload Violation"]
    await here.settled()


def certificate(folder: Path) -> dict[str, str]:
    """Make a certificate of its own for 127.0.0.1; return a server's settings."""
    openssl = shutil.which("openssl")
    assert openssl is not None, "the program openssl makes the certificate"
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [
            *(openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=nats", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", key, "-out", cert),
        ],
        check=True,
        capture_output=True,
    )
    return {"cert_file": str(cert), "key_file": str(key)}


def tls_goes_on(tmp_path: Path, runner: asyncio.Runner, servers: list[Nats]) -> None:
    async def main() -> None:
        files = certificate(tmp_path)
        servers.append(nats := Nats(tmp_path, tls=files))
        await nats.start()
        url = nats.url.replace("nats:", "tls:")
        authority = Path(files["cert_file"])
        here = await Linked.to(url, tls_ca=authority)
        there = await Linked.to(url, tls_ca=authority)
        there.link.subscribe(b"a")
        sent = [b"%d" % number * 100 for number in range(3000)]
        for turn in range(2):
            await there.settled()
            here.link.write([encode_pub(b"a", payload) for payload in sent])
            await there.came(len(sent))
            assert there.payloads == sent
            there.messages.clear()
            nats.kill()
            await happens(lambda: not here.link.connected and not there.link.connected)
            await nats.start()
            await happens(lambda: here.link.connected and there.link.connected)
            assert here.notices == ["down", "up"] * (turn + 1)
        await here.link.close()
        await there.link.close()
        with pytest.raises(NatsUnavailable, match="certificate is not trusted"):
            await Linked.to(url)

    runner.run(main())


def test_tls(tmp_path: Path, servers: list[Nats]) -> None:
    with asyncio.Runner() as runner:
        tls_goes_on(tmp_path, runner, servers)


def test_tls_on_uvloop(tmp_path: Path, servers: list[Nats]) -> None:
    uvloop = pytest.importorskip("uvloop")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        tls_goes_on(tmp_path, runner, servers)


Speak = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


INFO = b'INFO {"version":"2.15.0","max_payload":1000,"headers":true}\r\n'


@asynccontextmanager
async def speaking(*each: Speak, info: bytes = INFO) -> AsyncIterator[str]:
    """Yield the address of what greets as NATS; each connection, after the greeting, gets one."""
    left = list(each)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(info)
        while await reader.readline() not in (b"PING\r\n", b""):
            pass
        writer.write(b"PONG\r\n")
        await left.pop(0)(reader, writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield "nats://127.0.0.1:%d" % server.sockets[0].getsockname()[1]  # noqa: UP031
    server.close()


async def answers(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, until_line: bytes = b"\n"
) -> None:
    while (line := await reader.readline()) and not line.startswith(until_line):
        if line == b"PING\r\n":
            writer.write(b"PONG\r\n")


def says(data: bytes) -> Speak:
    """Say `data` once the link subscribes."""

    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answers(reader, writer, until_line=b"SUB")
        writer.write(data)

    return say


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"\x1b[31mHELLO\r\n", "not a line of NATS's protocol"),
        (b"MSG a one 1\r\nx\r\n", "invalid number in NATS's protocol"),
        (b"MSG a 1 99999999999999\r\n", "a message of"),
    ],
)
async def test_a_server_that_does_not_speak_nats(data: bytes, told: str) -> None:
    async with speaking(says(data), answers) as url:
        here = await Linked.to(url)
        await happens(lambda: here.notices == ["down", "up"])
        assert told in here.problems[0]
        assert all(line.isprintable() for line in here.problems)
        await here.settled()


@pytest.mark.parametrize(
    ("info", "told"),
    [
        (INFO.replace(b"2.15.0", b"2.9.25"), "is version 2.9.25, at least 2.10.23 is needed"),
        (INFO.replace(b"2.15.0", b"x"), "is version unknown, at least"),
        (INFO.replace(b"true", b"false"), "accepts no headers: set no_header_support = false"),
        (
            INFO.replace(b',"headers":true', b""),
            "accepts no headers: set no_header_support = false",
        ),
    ],
)
async def test_a_server_that_is_of_no_use(info: bytes, told: str) -> None:
    left: list[bytes] = []

    async def hear(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        left.append(await reader.read())

    async with speaking(hear, info=info) as url:
        with pytest.raises(NatsUnavailable, match=told) as caught:
            await Linked.to(url)
        assert str(caught.value).startswith(f"NATS at {url} ")
        await happens(lambda: left == [b""])


async def test_an_error_that_nats_py_takes_for_the_end() -> None:
    revokes = says(b"-ERR 'User Authentication Revoked'\r\n")
    async with speaking(revokes, revokes, answers) as url:
        here = await Linked.to(url)
        await happens(lambda: here.notices == ["down", "up"] * 2)
        assert here.problems == [f"NATS at {url}: User Authentication Revoked"] * 2
        await here.settled()


async def test_a_ping_of_the_server_is_answered() -> None:
    heard: list[bytes] = []

    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"PING\r\n")
        while line := await reader.readline():
            heard.append(line)

    async with speaking(ask) as url:
        here = await Linked.to(url)
        await happens(lambda: b"PONG\r\n" in heard)
        assert here.notices == []


async def test_an_unexpected_pong() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"PONG\r\n+OK\r\n" * 3)
        await answers(reader, writer)

    async with speaking(talk) as url:
        here = await Linked.to(url)
        await happens(lambda: here.link.connected)
        assert here.link.write(b"PING\r\n" * 0)
        assert here.notices == []


async def test_each_pong_is_for_the_ping_that_it_answers() -> None:
    """Ours and nats-py's differ in their order."""
    asked = 0
    answering = asyncio.Semaphore(0)

    async def answer_when_told(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        while line := await reader.readline():
            if line == b"PING\r\n":
                asked += 1
                await answering.acquire()
                writer.write(b"PONG\r\n")

    passed: list[int] = []
    async with speaking(answer_when_told) as url:
        here = await Linked.to(url)
        here.link.fence(lambda: passed.append(1))
        flushing = asyncio.create_task(here.link._client.flush())
        await asyncio.sleep(0)
        here.link.fence(lambda: passed.append(2))
        await happens(lambda: asked == 1)
        assert (passed, flushing.done()) == ([], False)
        answering.release()
        await happens(lambda: passed and asked == 2)
        assert (passed, flushing.done()) == ([1], False)
        answering.release()
        await happens(lambda: flushing.done() and asked == 3)
        assert passed == [1]
        answering.release()
        await happens(lambda: passed == [1, 2])


async def test_a_reconnect_that_ends_with_the_program_is_no_error(start: Start) -> None:
    nats = await start()
    here = await Linked.to(nats.url)
    client = here.link._client
    nats.signal(signal.SIGKILL)
    await happens(lambda: client.is_reconnecting and client._reconnection_task_future is not None)
    client._reconnection_task_future.set_result(True)  # as nats-py, when it is closed meanwhile
    client._reconnection_task.cancel()
    await asyncio.wait([client._reconnection_task])
    assert client._reconnection_task.exception() is None
