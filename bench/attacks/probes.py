"""Probes a broker during an attack: ``/healthz``, a PINGREQ, and a client that logs in.

A process of its own, told what to do on stdin like wellbehaved_clients.py: ``phase NAME`` ends a
phase and gives a line of JSON about it, ``end`` ends. An answer that has not come yet when a phase
ends counts with the time that it has taken so far, so silence is seen.
"""

import argparse
import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

from bench.attacks.attackers import PINGRESP, Link, Target
from bench.attacks.users import NEWCOMERS
from bench.brokers.mqtt_client import PUBACK, publish
from bench.processes.helper_process import stdin

_TIMEOUT = 60.0
"""Seconds to wait for an answer before the next probe."""


class Probe:
    """A probe that is sent repeatedly, and the times of its answers."""

    def __init__(self, name: str, every: float, ask: Callable[[], Awaitable[None]]) -> None:
        self._name = name
        self._every = every
        self._ask = ask
        self._asked: float | None = None
        self._took: list[float] = []
        self._failed = 0

    async def run(self) -> None:
        """Probe until cancelled."""
        while True:
            self._asked = time.perf_counter()
            try:
                async with asyncio.timeout(_TIMEOUT):
                    await self._ask()
                self._took.append(time.perf_counter() - self._asked)
            except (OSError, EOFError, TimeoutError):
                self._failed += 1
            asked, self._asked = self._asked, None
            await asyncio.sleep(max(0.0, asked + self._every - time.perf_counter()))

    def phase(self) -> dict[str, Any]:
        """Return the answer times of a phase in milliseconds, and begin the next one."""
        took, self._took = self._took, []
        failed, self._failed = self._failed, 0
        if self._asked is not None:
            took.append(time.perf_counter() - self._asked)
        took.sort()
        name = self._name
        return {
            f"{name}_p50_ms": round(1000 * took[len(took) // 2], 2) if took else None,
            f"{name}_max_ms": round(1000 * took[-1], 2) if took else None,
            f"{name}_failed": failed,
        }


class Probes:
    """All probes, and the delay of this process itself."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._ping: Link | None = None
        self._logins = itertools.count()
        self._late = 0.0
        self._probes = [
            Probe("healthz", 0.1, self._ask_health),
            Probe("ping", 0.1, self._send_ping),
            Probe("login", 0.5, self._log_in),
        ]

    def begin(self) -> list[asyncio.Task[None]]:
        """Start the probes."""
        loop = asyncio.get_running_loop()
        return [
            loop.create_task(self._watch_self()),
            *(loop.create_task(probe.run()) for probe in self._probes),
        ]

    def phase(self, name: str) -> dict[str, Any]:
        """Return the figures of a phase, and begin the next one."""
        found: dict[str, Any] = {"phase": name, "own_late_max_ms": round(1000 * self._late, 2)}
        self._late = 0.0
        for probe in self._probes:
            found |= probe.phase()
        return found

    async def _watch_self(self) -> None:
        while True:
            begun = time.perf_counter()
            await asyncio.sleep(0.02)
            self._late = max(self._late, time.perf_counter() - begun - 0.02)

    async def _ask_health(self) -> None:
        host, _, port = self._arguments.metrics.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(f"GET /healthz HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
            if not (await reader.read()).split(b" ", 2)[1:2] == [b"200"]:
                raise OSError
        finally:
            writer.transport.abort()

    async def _send_ping(self) -> None:
        try:
            if self._ping is None:
                self._ping = await self._login("probe", self._arguments.user)
            await self._ping.send(b"\xc0\x00")
            await self._ping.expect(PINGRESP)
        except (OSError, EOFError, TimeoutError):
            if self._ping is not None:
                self._ping.close()
            self._ping = None
            raise

    async def _log_in(self) -> None:
        """Log in as a user without a recent login, publish, and disconnect after the PUBACK."""
        name = f"newcomer-{next(self._logins) % NEWCOMERS}"
        link = await self._login(name, name)
        try:
            await link.send(publish("newcomer", b"hello", 1))
            await link.expect(PUBACK)
            await link.send(b"\xe0\x00")
        finally:
            link.close()

    async def _login(self, name: str, user: str) -> Link:
        target = Target(self._arguments.port, user, self._arguments.password)
        return await target.login(name, "127.0.0.1")


async def run(arguments: argparse.Namespace) -> None:
    """Probe until stdin ends."""
    probes = Probes(arguments)
    tasks = probes.begin()
    words = await stdin()
    name = "begin"
    while (line := (await words.readline()).decode().split()) and line[0] == "phase":
        print(json.dumps(probes.phase(name)), flush=True)
        name = line[1]
    for task in tasks:
        task.cancel()
    print(json.dumps(probes.phase(name)), flush=True)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("metrics", help="HOST:PORT of /healthz")
    parser.add_argument("--user", required=True)
    parser.add_argument("--password", default="")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
