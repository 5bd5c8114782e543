"""Notifications to systemd: a socket of the test plays the service manager."""

import asyncio
import contextlib
import json
import math
import os
import secrets
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness.broker import Broker, environment, free_port
from harness.drill import ROUNDS
from harness.waiting import until

from cli.serve.systemd_notify import Notifier
from protocol.errors import FoldmqError

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]


class Manager:
    """Hears what a service says."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self._socket.setblocking(False)
        self._heard: list[dict[str, str]] = []

    @property
    def heard(self) -> list[dict[str, str]]:
        """All messages until now, oldest first."""
        with contextlib.suppress(BlockingIOError):
            while True:
                lines = self._socket.recv(8192).decode().split("\n")
                self._heard.append(dict(line.split("=", 1) for line in lines))
        return list(self._heard)

    def said(self, name: str) -> list[str]:
        """The values of a variable until now."""
        return [message[name] for message in self.heard if name in message]

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    name = f"@foldmq-{secrets.token_hex(8)}"
    is_abstract = getattr(request, "param", "file") == "abstract"
    made = Manager(name if is_abstract else str(tmp_path / "notify"))
    yield made
    made.close()


@pytest.fixture
def broker(manager: Manager, tmp_path: Path) -> Iterator[Broker]:
    """A broker under a watchdog of half a second."""
    env = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "500000"}
    made = Broker(tmp_path, env=env, config="log_format = 'json'\n", forked=True)
    yield made
    made.clean_up()


@pytest.mark.parametrize("manager", ["file", "abstract"], indirect=True)
def test_a_start_a_reload_and_an_end_are_reported(manager: Manager, broker: Broker) -> None:
    broker.start()
    until(lambda: manager.said("READY"), "READY")
    first = manager.heard[0]
    assert first["STATUS"] == "starting"
    assert int(first["EXTEND_TIMEOUT_USEC"]) > 0
    assert manager.said("STATUS")[-1] == "0 clients"
    assert "RELOADING" not in manager.heard[-1]

    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    broker.hangup()
    until(lambda: len(manager.said("READY")) == 2, "READY after a reload")
    (reloading,) = [message for message in manager.heard if "RELOADING" in message]
    now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    assert before <= int(reloading["MONOTONIC_USEC"]) <= now

    broker.configure("log_format = 'json'\nack_wait = 'never'\n")
    broker.hangup()
    until(lambda: len(manager.said("READY")) == 3, "READY after a reload that failed")
    assert broker.told("settings not reloaded")

    assert manager.said("STOPPING") == []
    broker.stop()
    assert manager.said("STOPPING") == ["1"]


def test_ready_comes_when_clients_are_served_and_not_before(
    manager: Manager, broker: Broker
) -> None:
    with socket.create_server(("127.0.0.1", broker.port)):
        broker.refused(69)
    assert manager.said("READY") == []
    broker.start()
    until(lambda: manager.said("READY"), "READY")


def test_a_hanging_broker_sends_no_watchdog_messages(manager: Manager, broker: Broker) -> None:
    broker.start()
    until(lambda: len(manager.said("WATCHDOG")) >= 3, "signs of life")
    broker.pause()
    before = len(manager.said("WATCHDOG"))
    # Far more than the watchdog's time; nothing can come, however slow the machine is.
    time.sleep(1.5)
    assert len(manager.said("WATCHDOG")) == before
    broker.resume()
    until(lambda: len(manager.said("WATCHDOG")) > before, "signs of life again")


@pytest.mark.drill
@pytest.mark.parametrize(
    "attack",
    [
        "filter-bombs",
        pytest.param("filter-churn", marks=pytest.mark.long),
        pytest.param("large-subscribe", marks=pytest.mark.long),
    ],
)
def test_watchdog_messages_come_in_time_under_attack(attack: str, tmp_path: Path) -> None:
    """A silence as long as the watchdog's time would have the service killed."""
    manager = Manager(str(tmp_path / "notify"))
    limit = 5.0
    env = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": str(round(limit * 1e6))}
    broker = Broker(tmp_path, env=env, config="log_format = 'json'\n", forked=True)
    command = [sys.executable, "-m", "bench.attacks.attackers", str(broker.port), attack]
    command.append("--announce")
    try:
        broker.start()
        until(lambda: manager.said("WATCHDOG"), "a sign of life")
        with subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()
        ) as attackers:
            assert attackers.stdout is not None
            output = select.poll()  # select refuses descriptors from 1,024 on
            output.register(attackers.stdout, select.POLLIN)
            # On a busy machine it may take longer than the attack until that begins.
            began, end = b"", math.inf
            seen, heard_at, longest = 0, time.monotonic(), 0.0
            while longest < limit and (time.monotonic() < end or seen < 4):
                if began:
                    time.sleep(0.01)
                elif output.poll(10):
                    began = os.read(attackers.stdout.fileno(), len(b"began"))
                    assert began == b"began", "the attackers failed"
                    end = time.monotonic() + (1 if ROUNDS < 3 else 4) * limit
                now, count = time.monotonic(), len(manager.said("WATCHDOG"))
                longest = max(longest, now - heard_at)
                if count > seen:
                    seen, heard_at = count, now
            did = json.loads(attackers.communicate(b"\n")[0].splitlines()[-1])
        assert did, "nothing was attacked"
        assert longest < limit
        assert broker.running
    finally:
        broker.clean_up()
        manager.close()


def test_the_status_shows_the_problem(manager: Manager, tmp_path: Path) -> None:
    env = {"NOTIFY_SOCKET": manager.address}
    taken = free_port()
    broker = Broker(tmp_path, env=env, args=("--metrics", f"127.0.0.1:{taken}"), forked=True)
    with socket.create_server(("127.0.0.1", taken)):
        assert "--metrics" in broker.refused(69)
    last = manager.heard[-1]
    assert last["STOPPING"] == "1"
    assert last["STATUS"].startswith(f"failed: cannot listen on 127.0.0.1:{taken}")


def run(scenario: Callable[[], object]) -> None:
    asyncio.run(scenario())  # type: ignore[arg-type]  # coroutine functions only


def test_the_variables_are_taken_out_of_the_environment(manager: Manager) -> None:
    env = {
        "NOTIFY_SOCKET": manager.address,
        "WATCHDOG_USEC": "4000000",
        "WATCHDOG_PID": str(os.getpid()),
        "PATH": "/bin",
    }
    assert Notifier(env).watchdog == 4.0
    assert env == {"PATH": "/bin"}


@pytest.mark.parametrize(
    ("usec", "pid"), [("", ""), ("x", ""), ("-1", ""), ("1000000", "1"), ("1000000", "x")]
)
def test_a_watchdog_that_is_not_ours_is_none(usec: str, pid: str) -> None:
    assert Notifier({"WATCHDOG_USEC": usec, "WATCHDOG_PID": pid}).watchdog == 0.0


def test_without_a_manager_nothing_is_done() -> None:
    async def refused() -> tuple[str, ...]:
        raise OSError("no such file")

    async def scenario() -> None:
        notifier = Notifier({})
        with notifier.telling():
            notifier.starting("starting")
            notifier.ready(lambda: "well")
            outcome = await notifier.reload(refused, "not reloaded")
            assert outcome.error == "no such file"
            notifier.stopping("done")

    run(scenario)


def test_a_missing_service_manager_is_ignored(manager: Manager) -> None:
    async def scenario() -> None:
        notifier = Notifier({"NOTIFY_SOCKET": manager.address})
        manager.close()
        with notifier.telling():
            notifier.ready(lambda: "well")

    run(scenario)


def test_an_error_that_ends_the_service_is_its_last_status(manager: Manager) -> None:
    async def scenario() -> None:
        with Notifier({"NOTIFY_SOCKET": manager.address}).telling():
            raise FoldmqError("the log is\ngone \x1b[2J" + "x" * 1000)

    with pytest.raises(FoldmqError):
        run(scenario)
    last = manager.heard[-1]
    assert last["STOPPING"] == "1"
    assert last["STATUS"].startswith("failed: the log is\\ngone \\u001b[2Jxxx")
    assert len(last["STATUS"]) < 600


def test_an_unchanged_status_is_sent_once(manager: Manager) -> None:
    async def heard(condition: Callable[[], object]) -> None:
        await asyncio.to_thread(until, condition, "what the notifier says")

    async def scenario() -> None:
        notifier = Notifier({"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "30000"})
        with notifier.telling():
            notifier.ready(lambda: status[0])
            await heard(lambda: len(manager.said("WATCHDOG")) >= 4)
            status[0] = "worse"
            await heard(lambda: "worse" in manager.said("STATUS"))

    status = ["well"]
    run(scenario)
    assert manager.said("STATUS") == ["starting", "well", "worse"]
