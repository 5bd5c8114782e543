import asyncio
import json
import logging
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats.errors
import pytest
import pytest_asyncio
from harness.broker import free_port
from harness.waiting import TIMEOUT
from nats.aio.client import Client

from eventstore.datadir import DataDir
from eventstore.errors import (
    BadNatsOptions,
    LostLog,
    NatsTooOld,
    NatsUnavailable,
    TooManyReplicas,
    UnknownLogFormat,
    WeakDurability,
)
from eventstore.nats.connection import (
    ConnectionOptions,
    _quiet_client_library,
    check_server,
    check_server_version,
    connect,
)
from eventstore.nats.jetstream import check_jetstream
from eventstore.nats.log_stream import LogIdentityMismatch, durability_promise, ensure_stream
from eventstore.server.embedded_server import EmbeddedServer

pytestmark = pytest.mark.system

NAME, SUBJECT = "FOLDMQ_LOG_a", "$FOLDMQ.log.a"


def options_for(server: EmbeddedServer, **changes: Any) -> ConnectionOptions:
    return ConnectionOptions(
        **{"urls": (server.url,), "user": server.user, "password": server.password, **changes}
    )


@pytest_asyncio.fixture
async def client(server: EmbeddedServer) -> AsyncIterator[Client]:
    connected = await connect(options_for(server))
    yield connected
    await connected.close()


async def test_the_server_announces_its_maximum_payload(client: Client) -> None:
    assert check_server(client) == 32 * 1024 * 1024
    await check_jetstream(client)


async def test_notices_of_a_lost_and_regained_connection(
    server: EmbeddedServer, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    notices: list[str] = []
    back = asyncio.Event()
    client = await connect(
        options_for(server),
        on_disconnect=lambda: notices.append("disconnect"),
        on_reconnect=back.set,
        on_closed=lambda: notices.append("closed"),
        on_error=notices.append,
    )
    for _ in range(2):
        back.clear()
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        await asyncio.wait_for(back.wait(), 20)
    await client.close()
    assert notices.count("disconnect") == 2 + 1, "two losses and our own close"
    assert notices[-1] == "closed"
    lines = [notice for notice in notices if notice.startswith("NATS at ")]
    assert lines
    assert len(lines) == len([line for line in lines if "\n" not in line])
    assert not any("Traceback" in record.getMessage() for record in caplog.records)
    assert capfd.readouterr().err == ""


async def test_unreachable_server(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    url = f"nats://127.0.0.1:{free_port()}"
    with pytest.raises(NatsUnavailable, match="connection refused; check the address") as caught:
        await connect(ConnectionOptions(urls=(url,)), timeout=0.3)
    assert url in str(caught.value)
    assert caught.value.exit_code == 69
    assert not caplog.records
    assert capfd.readouterr().err == ""


async def test_server_that_starts_late_is_waited_for(datadir: DataDir) -> None:
    server = EmbeddedServer(datadir)
    await server.start()
    await server.stop()
    opening = asyncio.create_task(connect(options_for(server), timeout=20))
    await asyncio.sleep(0.1)
    await server.start()
    await (await opening).close()
    await server.stop()


async def test_something_that_never_greets() -> None:
    silent = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    with pytest.raises(NatsUnavailable, match="cannot connect to NATS at"):
        await connect(ConnectionOptions(urls=(f"127.0.0.1:{port}",)), timeout=0.3)
    silent.close()


async def test_cancelled_connect_leaves_nothing_running() -> None:
    before = asyncio.all_tasks()
    opening = asyncio.create_task(
        connect(ConnectionOptions(urls=(f"nats://127.0.0.1:{free_port()}",)), timeout=60)
    )
    await asyncio.sleep(0.05)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert asyncio.all_tasks() == before


@pytest.mark.parametrize("changes", [{"password": "wrong"}, {"user": None, "password": None}])
async def test_wrong_password_fails_at_once(
    server: EmbeddedServer, changes: dict[str, Any]
) -> None:
    with pytest.raises(NatsUnavailable, match=r"rejects our credentials; check the user"):
        await connect(options_for(server, **changes), timeout=60)


async def test_secrets_are_not_shown() -> None:
    options = ConnectionOptions(urls=("nats://me:secret@127.0.0.1:1",), password="other")
    with pytest.raises(NatsUnavailable) as caught:
        await connect(options, timeout=0.1)
    assert "nats://127.0.0.1:1" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "other" not in repr(options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"urls": ("nats://[::1",)}, "not a NATS address"),
        ({"urls": ("nats://h:x",)}, "connect url"),
        ({"urls": ()}, "--nats-url"),
        *[
            ({field: Path("/none/none.pem")}, r"none\.pem: No such file")
            for field in ("credentials", "nkey_seed", "tls_ca", "tls_cert")
        ],
        (
            {"credentials": Path(__file__).with_name("conftest.py")},
            "it lacks 'BEGIN NATS USER JWT'",
        ),
        ({"tls_key": Path("/none/key.pem")}, "needs its certificate"),
    ],
)
async def test_options_that_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises((BadNatsOptions, NatsUnavailable), match=text) as caught:
        await connect(
            ConnectionOptions(**{"urls": (f"nats://127.0.0.1:{free_port()}",), **options}),
            timeout=1,
        )
    assert caught.value.exit_code == (69 if text == "connect url" else 78)


def test_a_log_message_of_the_client_library_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    _quiet_client_library()
    logging.getLogger("nats.aio.client").error("odd", exc_info=ValueError("this"))
    ours = [record for record in caplog.records if record.name == "foldmq.nats"]
    assert [record.getMessage() for record in ours] == ["odd: ValueError: this"]
    assert ours[0].exc_info is None
    assert not logging.getLogger("nats").propagate


@pytest.mark.parametrize("version", ["2.10.23", "v2.12.1", "2.15.1", "3.0.0", "2.15.0-dev"])
def test_recent_versions(version: str) -> None:
    check_server_version(version, where="the NATS server")


@pytest.mark.parametrize("version", ["2.10.22", "2.9.25", "1.4.1", "", "unknown"])
def test_old_versions(version: str) -> None:
    with pytest.raises(NatsTooOld, match=r"at least 2\.10\.23 is needed"):
        check_server_version(version, where="the NATS server")


async def test_old_server_is_refused(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client._current_server, "server_version", "2.10.22")
    with pytest.raises(NatsTooOld, match=r"the NATS server is version 2\.10\.22"):
        check_server(client)


async def test_stream_is_made_once(client: Client) -> None:
    first = await ensure_stream(client, NAME, [SUBJECT], sync="always")
    assert (first.created, first.first_seq, first.last_seq) == (True, 0, 0)
    assert "on disk" in first.promise
    await client.request(SUBJECT, b"record", timeout=TIMEOUT)
    second = await ensure_stream(client, NAME, [SUBJECT], must_exist=True)
    assert (second.created, second.first_seq, second.last_seq) == (False, 1, 1)
    assert "cannot see" in second.promise


async def test_a_lost_answer_to_the_creation(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, lost = client.request, []

    async def lossy(subject: str, data: bytes = b"", **more: Any) -> Any:
        answer = await request(subject, data, **more)
        if "STREAM.CREATE" in subject and not lost:
            lost.append(answer)
            raise nats.errors.TimeoutError
        return answer

    monkeypatch.setattr(client, "request", lossy)
    made = await ensure_stream(client, NAME, [SUBJECT])
    assert (len(lost), made.created, made.last_seq) == (1, True, 0)


async def test_a_log_that_nats_does_not_recover_is_not_replaced(datadir: DataDir) -> None:
    server = EmbeddedServer(datadir)
    await server.start()
    client = await connect(options_for(server))
    await ensure_stream(client, NAME, [SUBJECT])
    await client.request(SUBJECT, b"record", timeout=TIMEOUT)
    await client.close()
    await server.stop()
    (datadir.jetstream / "jetstream/$G/streams" / NAME / "meta.inf").write_text("{}")
    await server.start()
    client = await connect(options_for(server))
    with pytest.raises(LostLog, match="did not recover it"):
        await ensure_stream(client, NAME, [SUBJECT], must_exist=NAME in server.stored_streams())
    repaired = await ensure_stream(client, NAME, [SUBJECT])
    assert (repaired.created, repaired.last_seq) == (True, 1)
    await client.close()
    await server.stop()


async def test_replicas_need_a_cluster(client: Client) -> None:
    with pytest.raises(TooManyReplicas, match=r"nats_replicas = 3: .* in non-clustered mode"):
        await ensure_stream(client, NAME, [SUBJECT], replicas=3)
    await ensure_stream(client, NAME, [SUBJECT])
    with pytest.raises(TooManyReplicas, match=r"nats_replicas = 3: .* in non-clustered mode"):
        await ensure_stream(client, NAME, [SUBJECT], replicas=3)


async def test_subject_of_another_stream(client: Client) -> None:
    await ensure_stream(client, NAME, [SUBJECT])
    with pytest.raises(NatsUnavailable, match="another stream already has the subjects"):
        await ensure_stream(client, "FOLDMQ_LOG_b", [SUBJECT])


@pytest.mark.parametrize(
    ("changes", "setting"),
    [
        ({"storage": "memory"}, "storage"),
        ({"retention": "workqueue"}, "retention"),
        ({"retention": "interest"}, "retention"),
        ({"max_age": 3600_000_000_000}, "max_age"),
        ({"max_msgs": 1000}, "max_msgs"),
        ({"max_bytes": 1000}, "max_bytes"),
        ({"max_msgs_per_subject": 1}, "max_msgs_per_subject"),
        ({"max_msg_size": 1024}, "max_msg_size"),
        ({"persist_mode": "async"}, "persist_mode"),
        ({"no_ack": True}, "no_ack"),
        ({"subjects": ["other"]}, "subjects"),
        ({"allow_direct": False}, "allow_direct"),
        ({"subject_transform": {"src": SUBJECT, "dest": "elsewhere"}}, "subject_transform"),
        ({"sources": [{"name": "other"}]}, "sources"),
        ({"mirror": {"name": "other"}, "subjects": None}, "mirror"),
    ],
)
async def test_weak_stream_is_refused(
    client: Client, changes: dict[str, Any], setting: str
) -> None:
    config = {
        "name": NAME,
        "subjects": [SUBJECT],
        "storage": "file",
        "retention": "limits",
        "discard": "old",
        "allow_direct": True,
        **changes,
    }
    await make(client, {key: value for key, value in config.items() if value is not None})
    with pytest.raises(WeakDurability, match=f"stream {NAME}: {setting} is ") as caught:
        await ensure_stream(client, NAME, [SUBJECT])
    assert caught.value.exit_code == 78


async def make(client: Client, config: dict[str, Any]) -> None:
    reply = await client.request(
        f"$JS.API.STREAM.CREATE.{config['name']}", json.dumps(config).encode(), timeout=TIMEOUT
    )
    assert "error" not in json.loads(reply.data), reply.data


async def test_stream_made_by_an_operator_is_accepted(client: Client) -> None:
    await make(
        client,
        {
            "name": NAME,
            "subjects": [SUBJECT, "more"],
            "storage": "file",
            "retention": "limits",
            "discard": "new",
            "max_bytes": 1 << 20,
            "allow_direct": True,
            "compression": "s2",
        },
    )
    assert not (await ensure_stream(client, NAME, [SUBJECT])).created


async def test_sealed_stream_is_refused(client: Client) -> None:
    await ensure_stream(client, NAME, [SUBJECT])
    info = await client.jetstream().stream_info(NAME)
    info.config.sealed = True
    await client.jetstream().update_stream(info.config)
    with pytest.raises(WeakDurability, match="sealed is true"):
        await ensure_stream(client, NAME, [SUBJECT])


async def test_log_of_a_later_foldmq(client: Client) -> None:
    await ensure_stream(client, NAME, [SUBJECT])
    info = await client.jetstream().stream_info(NAME)
    info.config.metadata = {"foldmq.log": "2"}
    await client.jetstream().update_stream(info.config)
    with pytest.raises(UnknownLogFormat, match="format 2"):
        await ensure_stream(client, NAME, [SUBJECT])


@pytest.mark.parametrize(
    ("replicas", "sync", "text"),
    [
        (1, "always", "on disk on one server"),
        (3, "always", "on disk on a majority of 3 servers"),
        (1, 0.5, "a power failure may undo the last 0.5 s"),
        (1, None, "clients cannot see"),
    ],
)
def test_the_durability_guarantee(replicas: int, sync: str | float | None, text: str) -> None:
    assert text in durability_promise(replicas, sync)


async def test_account_without_jetstream(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    request = client.request

    async def elsewhere(subject: str, data: bytes = b"", timeout: float = 1) -> Any:  # noqa: ASYNC109
        return await request("no.one.listens", data, timeout=timeout)

    monkeypatch.setattr(client, "request", elsewhere)
    with pytest.raises(NatsUnavailable, match="no JetStream: start it with --jetstream"):
        await check_jetstream(client)


async def test_a_log_of_another_cluster_is_refused(server: EmbeddedServer) -> None:
    client = await connect(options_for(server))
    await ensure_stream(client, "FOLDMQ_LOG_c1", ["foldmq.log.c1"], identity="ab")
    await ensure_stream(client, "FOLDMQ_LOG_c1", ["foldmq.log.c1"], identity="ab")
    for identity, said in (
        ("cd", "its key is different"),
        (None, "its log belongs to a cluster"),
    ):
        with pytest.raises(LogIdentityMismatch, match=said):
            await ensure_stream(client, "FOLDMQ_LOG_c1", ["foldmq.log.c1"], identity=identity)
    await ensure_stream(client, "FOLDMQ_LOG_n1", ["foldmq.log.n1"])
    with pytest.raises(LogIdentityMismatch, match="belongs to a single node"):
        await ensure_stream(client, "FOLDMQ_LOG_n1", ["foldmq.log.n1"], identity="ab")
    await client.close()
