"""The broker's log when its reader stops reading, goes away, or never was there."""

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest
from harness import forkserver
from harness.broker import environment, foldmq, free_port
from harness.waiting import until

from cli.common.logging_setup import UnblockedStream

pytestmark = pytest.mark.system


def filled(number: int) -> None:
    """Write until nothing more fits, whatever the writer is."""
    flags = fcntl.fcntl(number, fcntl.F_GETFL)
    fcntl.fcntl(number, fcntl.F_SETFL, flags | os.O_NONBLOCK)
    for size in (65536, 1):
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(number, bytes(size))
    fcntl.fcntl(number, fcntl.F_SETFL, flags)


@contextlib.contextmanager
def a_pair(kind: str) -> Iterator[tuple[int, TextIO]]:
    """A reader and the writer of a pipe or a socket."""
    if kind == "pipe":
        reader, number = os.pipe()
        writer = os.fdopen(number, "w", encoding="utf-8")
    else:
        ours, theirs = socket.socketpair()
        reader, writer = ours.detach(), os.fdopen(theirs.detach(), "w", encoding="utf-8")
    try:
        yield reader, writer
    finally:
        with contextlib.suppress(OSError):
            os.close(reader)
        with contextlib.suppress(OSError):
            writer.close()


def rest_of(reader: int) -> str:
    os.set_blocking(reader, False)
    found = b""
    with contextlib.suppress(BlockingIOError):
        while part := os.read(reader, 65536):
            found += part
    return found.decode().replace("\0", "")


@pytest.mark.parametrize("reopened", [True, False])
@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_lines_without_room_are_dropped_and_counted(
    kind: str, reopened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with a_pair(kind) as (reader, writer):
        if not reopened:

            def refuse(*_: object) -> int:
                raise PermissionError

            with monkeypatch.context() as patched:
                patched.setattr(os, "open", refuse)
                stream = UnblockedStream(writer)
        else:
            stream = UnblockedStream(writer)
        stream.write("first\n")
        filled(writer.fileno())
        for number in range(50):
            stream.write(f"lost {number}\nand its second line\n")
        assert stream.dropped == 100
        assert rest_of(reader) == "first\n"
        stream.say_dropped()
        stream.say_dropped()
        stream.write("next\n")
        said = "100 lines were dropped here, because stderr was not read\n"
        assert rest_of(reader) == f"{said}next\n"
        assert os.get_blocking(writer.fileno())


def test_a_line_that_was_cut_is_completed() -> None:
    with a_pair("pipe") as (reader, writer):
        stream = UnblockedStream(writer)
        long = "y" * 200_000 + "\n"
        stream.write(long)
        stream.write("lost\n")
        found = ""
        while len(found) < len(long):
            found += rest_of(reader)
            stream.say_dropped()
        assert found + rest_of(reader) == (
            f"{long}1 line was dropped here, because stderr was not read\n"
        )


def test_a_reader_that_is_gone() -> None:
    with a_pair("pipe") as (reader, writer):
        stream = UnblockedStream(writer)
        os.close(reader)
        stream.write("lost\n")
        assert stream.dropped == 1


def test_a_file_gets_everything(tmp_path: Path) -> None:
    with (tmp_path / "log").open("a", encoding="utf-8") as file:
        file.write("before\n")
        file.flush()
        UnblockedStream(file).write("line\n")
    assert (tmp_path / "log").read_text() == "before\nline\n"


def serve(tmp_path: Path, port: int, *more: str) -> list[str]:
    command = [foldmq(), "serve", "--data-dir", str(tmp_path / "data")]
    return [*command, "--listen", f"127.0.0.1:{port}", "--metrics", "off", "--web", "off", *more]


def listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(2)
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("processes", ["1", pytest.param("2", marks=pytest.mark.long)])
def test_a_broker_whose_output_is_not_read_serves(tmp_path: Path, processes: str) -> None:
    port = free_port()
    reader, writer = os.pipe()
    filled(writer)
    process = subprocess.Popen(
        serve(tmp_path, port, "--log-level", "debug", "--processes", processes),
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=writer,
        stderr=writer,
    )
    try:
        until(lambda: listens(port), "the listener")
        arguments = ["pub", "-p", str(port), "-t", "a", "-m", "1", "-q", "1"]
        until(lambda: forkserver.run(arguments, environment(), 60)[0] == 0, "a PUBACK")
        status = ["status", "--data-dir", str(tmp_path / "data")]
        code, out, err = forkserver.run(status, environment(), 60)
        assert code == 0, err
        assert b"of the broker's log dropped" in out
        rest_of(reader)
        found: list[str] = []

        def says_so() -> bool:
            found.append(rest_of(reader))
            return "lines were dropped here" in "".join(found)

        until(says_so, "the number of dropped lines")
        filled(writer)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize("closed", ["2>&-", "0<&- 1>&- 2>&-"])
def test_a_broker_without_standard_streams_serves(tmp_path: Path, closed: str) -> None:
    port = free_port()
    line = f'exec "$@" {closed}'
    process = subprocess.Popen(
        ["sh", "-c", line, "sh", *serve(tmp_path, port)],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until(lambda: listens(port), "the listener")
        for number in range(3):
            target = Path(f"/proc/{process.pid}/fd/{number}").readlink()
            assert str(target) == os.devnull
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def test_few_open_files_are_one_clear_line(tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", 'ulimit -n 64; exec "$@"', "sh", *serve(tmp_path, free_port())],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 78
    (line,) = done.stderr.splitlines()
    assert line.startswith("foldmq: the limit on open files is 64, the broker needs at least ")
    assert "ulimit -n" in line
