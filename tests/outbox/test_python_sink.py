"""The sink python with real processes: what a class does wrong harms only its process."""

import asyncio
import contextlib
import os
import select
import signal
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness.broker import wait_until_gone
from harness.waiting import happens, until

from eventstore.format.positions import position
from outbox.sink import Destination, OutboxMessage, RefusedMessages, TryAgain
from outbox.sinks.python import PythonOptions, PythonSink
from protocol.mqtt.message_properties import MessageProperties, encode_message_properties

pytestmark = pytest.mark.system

SINKS = """
import asyncio, os, re, signal, subprocess, sys, time

class Base:
    def __init__(self, path):
        self.path = path
        self.note(f"pid {os.getpid()}")

    def note(self, *lines):
        with open(self.path, "a") as file:
            file.writelines(f"{line}\\n" for line in lines)

    def send(self, messages):
        for message in messages:
            self.take(message)
        self.note(*(message.payload.decode() for message in messages))

    def take(self, message):
        command = message.payload.decode()
        if os.path.exists(self.path + ".mended"):
            return
        if command == "exit": sys.exit(3)
        if command == "die": os._exit(4)
        if command == "kill": os.kill(os.getpid(), signal.SIGKILL)
        if command == "raise": raise RuntimeError("no\\nmore")
        if command == "hang": time.sleep(600)
        if command == "loop":
            while True: pass
        if command == "lock": re.match("(a+)+$", "a" * 64 + "b")
        if command == "close": os.closerange(3, 65_536)
        if command == "print":
            print("{}", flush=True); os.write(1, b"\\0" * 100_000); os.write(2, b"x\\n" * 10_000)
        if command == "child": self.note(f"pid {subprocess.Popen(['sleep', '600']).pid}")
        if command == "leak":
            kept = []
            while True: kept.append(bytearray(1 << 20))

class Async(Base):
    async def open(self):
        await asyncio.sleep(0)
        self.note("open")
    async def send(self, messages):
        await asyncio.sleep(0)
        self.note(*(message.payload.decode() for message in messages))
    async def close(self):
        self.note("close")

class Picky(Base):
    def send(self, messages):
        self.note(*(m.payload.decode() for m in messages))
        return [(m, "too " + m.payload.decode()[0]) for m in messages if m.payload[:1] in b"xy"]

class Wrong(Base):
    def send(self, messages):
        return len(messages)

class Away(Base):
    def open(self):
        raise ConnectionError("the database is away")

class Shown(Base):
    def send(self, messages):
        for m in messages:
            self.note(m.id, m.topic, m.qos, m.retain, m.client, m.time.isoformat(), m.properties)
            self.note(m.json())
"""


async def never(_position: int) -> None:
    raise AssertionError


ABOUT = Destination("own", "n1", 1, 1, 0, 0, never)


def messages(*payloads: str, block: bytes = b"") -> list[OutboxMessage]:
    return [
        OutboxMessage(
            *(position(7, index), position(7, index), index + 1, 1_700_000_000_123, "a/b"),
            *(payload.encode(), 1, False, "pump", block),
        )
        for index, payload in enumerate(payloads)
    ]


def environment_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


def cpu_seconds(pid: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) / os.sysconf("SC_CLK_TCK")


class Case:
    """A sink with a class of `SINKS`, and the file to which it writes."""

    def __init__(self, folder: Path, name: str, **more: Any) -> None:
        (folder / "sinks.py").write_text(SINKS)
        self.file = folder / "notes"
        options = {"path": str(self.file)}
        self.sink = PythonSink(PythonOptions(f"sinks:{name}", folder, options, **more))

    @property
    def lines(self) -> list[str]:
        return self.file.read_text().splitlines()

    @property
    def notes(self) -> list[str]:
        return [line for line in self.lines if not line.startswith("pid ")]

    @property
    def pids(self) -> list[int]:
        return [int(line[4:]) for line in self.lines if line.startswith("pid ")]

    def limit(self, seconds: float) -> None:
        """Change the time-out; a process that starts needs more on a busy machine."""
        self.sink._options = replace(self.sink._options, timeout=seconds)

    def mend(self) -> None:
        Path(f"{self.file}.mended").touch()


@contextlib.asynccontextmanager
async def opened(case: Case) -> AsyncIterator[PythonSink]:
    await case.sink.open(ABOUT)
    try:
        yield case.sink
    finally:
        await case.sink.close()
        assert not [pid for pid in case.pids if not wait_until_gone(pid)]


@pytest.mark.parametrize("name", ["Base", "Async"])
async def test_batches_come_in_order(tmp_path: Path, name: str) -> None:
    case = Case(tmp_path, name)
    async with opened(case) as sink:
        for number in range(5):
            await sink.send(messages(f"{number}.a", f"{number}.b"))
    both = [f"{number}.{part}" for number in range(5) for part in "ab"]
    assert case.notes == (["open", *both, "close"] if name == "Async" else both)
    assert len(case.pids) == 1


FAILURES = {
    "exit": "SystemExit: 3",
    "die": "its process ended: exit 4",
    "kill": "its process ended: signal 9",
    "raise": "RuntimeError: no",
    "hang": "sinks:Base did not return within 1 s",
    "loop": "sinks:Base did not return within 1 s",
    "close": "its process ended: ",
    "leak": "MemoryError",
}


@pytest.mark.parametrize("command", FAILURES)
async def test_a_failure_ends_the_process_and_the_next_attempt_has_a_new_one(
    tmp_path: Path, command: str
) -> None:
    case = Case(tmp_path, "Base", memory=2**28)
    async with opened(case) as sink:
        await sink.send(messages("before"))
        case.limit(1.0 if command in ("hang", "loop") else 30.0)
        with pytest.raises(TryAgain) as caught:
            await sink.send(messages(command, "behind"))
        assert FAILURES[command] in caught.value.reason
        assert not caught.value.misconfigured
        assert wait_until_gone(case.pids[0])
        case.mend()
        case.limit(30.0)
        await sink.send(messages(command, "behind"))
    # Only a class that stored a batch, and could not say so, gets it twice.
    sent = [command, "behind"]
    assert case.notes == ["before", *sent, *(sent if command == "close" else [])]
    assert len(case.pids) == 2


async def test_what_it_prints_is_not_taken_for_an_answer(tmp_path: Path) -> None:
    case = Case(tmp_path, "Base")
    async with opened(case) as sink:
        await sink.send(messages("print", "print"))
        await sink.send(messages("behind"))
    assert case.notes == ["print", "print", "behind"]


async def test_processes_that_it_starts_end_with_it(tmp_path: Path) -> None:
    case = Case(tmp_path, "Base")
    async with opened(case) as sink:
        await sink.send(messages("child"))
        assert len(case.pids) == 2
        with pytest.raises(TryAgain):
            await sink.send(messages("raise"))
        assert all(wait_until_gone(pid) for pid in case.pids)


async def test_it_ends_when_the_outbox_is_gone(tmp_path: Path) -> None:
    case = Case(tmp_path, "Base")
    async with opened(case) as sink:
        sending = asyncio.create_task(sink.send(messages("loop")))
        await happens(lambda: case.file.exists() and case.pids)
        # The kernel closes the connection of a process that was killed.
        sink._writer.transport.abort()
        with pytest.raises(TryAgain):
            await sending
        assert wait_until_gone(case.pids[0])


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux ends it")
def test_it_ends_with_the_outbox_while_it_holds_the_lock_of_the_interpreter(tmp_path: Path) -> None:
    case = Case(tmp_path, "Base")
    outbox = os.fork()
    if not outbox:

        async def send() -> None:
            await case.sink.open(ABOUT)
            await case.sink.send(messages("lock"))

        asyncio.run(send())
        os._exit(1)
    until(lambda: case.file.exists() and case.pids)
    (pid,) = case.pids
    # The class is at work for longer than a start takes.
    before = cpu_seconds(pid)
    until(lambda: cpu_seconds(pid) > before + 0.5)
    os.kill(outbox, signal.SIGKILL)
    os.waitpid(outbox, 0)
    assert wait_until_gone(pid)


async def test_it_ends_when_the_outbox_was_killed_before_it_read_an_answer(tmp_path: Path) -> None:
    """The kernel resets a connection that is closed with data in it."""
    case = Case(tmp_path, "Base")
    async with opened(case) as sink:
        sink._writer.transport.pause_reading()  # type: ignore[attr-defined]  # a socket has it
        sending = asyncio.create_task(sink.send(messages("a")))
        await happens(lambda: case.notes == ["a"])
        with socket.socket(fileno=os.dup(sink._writer.get_extra_info("socket").fileno())) as copy:
            await happens(lambda: select.select([copy], [], [], 0)[0])
        sink._writer.transport.abort()
        with pytest.raises(TryAgain, match="its process ended: signal 9"):
            await sending
        assert wait_until_gone(case.pids[0])


async def refused_by(sink: PythonSink, batch: Sequence[OutboxMessage]) -> RefusedMessages:
    with pytest.raises(RefusedMessages) as caught:
        await sink.send(batch)
    return caught.value


async def test_refused_messages_are_named_and_the_others_not_sent_again(tmp_path: Path) -> None:
    case = Case(tmp_path, "Picky")
    batch = messages("a", "x1", "b", "y1", "x2")
    async with opened(case) as sink:
        first = await refused_by(sink, batch)
        assert (first.reason, {*first.at}) == ("too x", {batch[1].at, batch[4].at})
        left = [batch[0], batch[2], batch[3]]
        second = await refused_by(sink, left)
        assert (second.reason, {*second.at}) == ("too y", {batch[3].at})
        await sink.send([batch[0], batch[2]])
        await sink.send(messages("c"))
    assert case.notes == ["a", "x1", "b", "y1", "x2", "c"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [("Wrong", "send returned 1: must be None, or"), ("Away", "the database is away")],
)
async def test_mistakes_are_one_line(tmp_path: Path, name: str, reason: str) -> None:
    case = Case(tmp_path, name)
    with pytest.raises(TryAgain) as caught:
        async with opened(case) as sink:
            await sink.send(messages("a"))
    assert reason in caught.value.reason
    assert "\n" not in caught.value.reason
    assert not caught.value.misconfigured


async def test_a_class_that_is_missing_is_a_wrong_setting(tmp_path: Path) -> None:
    case = Case(tmp_path, "Missing")
    with pytest.raises(TryAgain) as caught:
        await case.sink.open(ABOUT)
    assert caught.value.misconfigured
    await case.sink.close()


async def test_a_directory_that_is_gone_is_a_wrong_setting(tmp_path: Path) -> None:
    sink = PythonSink(PythonOptions("sinks:Base", tmp_path / "gone"))
    with pytest.raises(TryAgain, match="cannot start its process: No such file") as caught:
        await sink.open(ABOUT)
    assert caught.value.misconfigured
    await sink.close()


async def test_what_a_message_has(tmp_path: Path) -> None:
    properties = MessageProperties(content_type="application/json", user=(("a", "1"),))
    case = Case(tmp_path, "Shown")
    async with opened(case) as sink:
        await sink.send(messages('{"n": 1}', block=encode_message_properties(properties)))
    assert case.notes == [
        *("n1/7.0", "a/b", "1", "False", "pump", "2023-11-14T22:13:20.123000+00:00"),
        "{'content_type': 'application/json', 'user_properties': [['a', '1']]}",
        "{'n': 1}",
    ]


async def test_it_has_no_settings_of_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOLDMQ_NATS_PASSWORD", "secret")
    case = Case(tmp_path, "Base")
    async with opened(case):
        environment = environment_of(case.pids[0])
    assert b"FOLDMQ" not in environment


async def test_a_stopped_process_is_killed(tmp_path: Path) -> None:
    case = Case(tmp_path, "Base")
    async with opened(case) as sink:
        os.kill(case.pids[0], signal.SIGSTOP)
        case.limit(1.0)
        with pytest.raises(TryAgain):
            await sink.send(messages("a"))
        case.limit(30.0)
        await sink.send(messages("a"))
    assert case.notes == ["a"]
