"""Measures a cluster: clients of an edge, failovers, and the hand-over.

    python bench/cluster.py [--kills N] [--moves N] [--suspends N] [--rounds N] [--messages N]
                            [--sessions N] [--retained N]

Two nodes and one NATS server on this machine. ``through``: QoS 1, 4 publishers and 4 subscribers,
each with a topic of its own, at the leader and through the other node in turn; and the latency at
1,000 messages/s. A ratio is the median of the rounds. ``kill``, ``suspend`` and ``move``: a
client of the other node publishes at QoS 1, one message after the other, and connects again as soon
as its connection ends; the time is the longest without a PUBACK. The log has so many offline
persistent sessions and retained messages. One JSON object is printed.
"""

import argparse
import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run by its path

from bench.brokers.broker_processes import ROOT, BenchError
from bench.brokers.mqtt_client import CONNACK, PUBACK, Client, connect, make_sessions, publish
from bench.measuring.load_generator import compile_loader, run_load
from bench.measuring.progress import say

sys.path.append(str(ROOT / "tests"))
from harness.broker import environment, foldmq  # type: ignore[import-not-found]
from harness.foldcluster import Nodes  # type: ignore[import-not-found]
from harness.nats import ACCESS, PASSWORD, USER, Nats  # type: ignore[import-not-found]
from harness.waiting import until  # type: ignore[import-not-found]

_PAIRS = ["pubsub", "-p", "4", "-s", "4", "-t", "4", "--topic-by-pub", "-q", "1"]
_SOME = 20
"""Acknowledgements before and after a fault."""


class Watcher(threading.Thread):
    """A client that publishes at QoS 1, one message at a time, and connects again at once."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._ended = threading.Event()
        self.acknowledged: list[float] = []
        """Time of each PUBACK, in monotonic seconds."""

    def run(self) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(OSError, BenchError):
                self._publish()

    def _publish(self) -> None:
        with Client(self._port) as client:
            client.send(connect("watcher"))
            client.expect(CONNACK)
            while not self._ended.is_set():
                client.send(publish("watch", b"x", 1))
                client.expect(PUBACK)
                self.acknowledged.append(time.monotonic())
                time.sleep(0.002)

    def end(self) -> None:
        self._ended.set()
        self.join()


def interruption(nodes: Nodes, strike: Callable[[Any], object]) -> float:
    """Inject a fault into the leader; return the longest time without a PUBACK at the other
    node."""
    leader = nodes.leader
    (other,) = (one for one in nodes.members if one is not leader)
    watcher = Watcher(other.port)
    watcher.start()
    until(lambda: len(watcher.acknowledged) > _SOME, "acknowledgements")
    before = len(watcher.acknowledged) - 1
    strike(leader)
    until(lambda: other.leads, "another leader")
    count = len(watcher.acknowledged)
    until(lambda: len(watcher.acknowledged) > count + _SOME, "acknowledgements")
    watcher.end()
    times = watcher.acknowledged[before:]
    return max(after - earlier for earlier, after in itertools.pairwise(times))


def main() -> int:
    """Measure and print; the exit code is 1 on failure."""
    options = argparse.ArgumentParser(description=__doc__)
    for name, value in (
        ("kills", 20), ("moves", 10), ("suspends", 3), ("rounds", 3), ("messages", 60_000),
        ("sessions", 10_000), ("retained", 100_000),
    ):  # fmt: skip
        options.add_argument(f"--{name}", type=int, default=value)
    wanted = options.parse_args()
    compile_loader()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        key = work / "key"
        key.write_text("the key of the measured cluster\n")
        (work / "nats").mkdir()
        nats = Nats(work / "nats")
        nats.start()
        config = (
            f"{ACCESS}cluster = 'c1'\ncluster_listen = '127.0.0.1:0'\n"
            f"cluster_key_file = '{key}'\nconnection_rate_per_address = 0\n"
        )
        nodes = Nodes(work, [nats.port] * 2, config)
        try:
            nodes.start()
            print(json.dumps(measured(nodes, nats, wanted), indent=2))
        finally:
            nodes.clean_up()
            nats.kill()
    return 0


def measured(nodes: Nodes, nats: Nats, wanted: argparse.Namespace) -> dict[str, Any]:
    """Return all results."""
    found: dict[str, Any] = {"load_average": os.getloadavg()}
    if wanted.rounds:
        found["through"] = through(nodes, wanted)
    leader = nodes.leader
    if wanted.retained:
        say(f"{wanted.retained} retained messages")
        count = ["-n", str(wanted.retained), "-i", "30", "-T", "600"]
        result = run_load(["retain", "-q", "1", "--keep", *count], leader.port, leader.pid)
        if "problem" in result:
            raise BenchError(result["problem"])
    for made in make_sessions(leader.port, wanted.sessions):
        if made % 2000 == 0:
            say(f"{made} sessions")
    found["sessions"], found["retained"] = wanted.sessions, wanted.retained
    for name, count, strike in (
        ("kill", wanted.kills, lambda one: one.kill()),
        ("suspend", wanted.suspends, lambda one: one.pause()),
        ("move", wanted.moves, lambda _: move(nats)),
    ):
        times = []
        for number in range(count):
            leader = nodes.leader
            until(lambda: any(one.following for one in nodes.members), "a follower")
            time.sleep(1.0)
            times.append(interruption(nodes, strike))
            say(f"{name} {number + 1}: {times[-1]:.3f} s")
            if name == "suspend":
                leader.resume()
            elif name == "kill":
                leader.start()
            until(lambda old=leader: old.following, "the old leader as a follower")
        if times:
            found[name] = {
                "n": len(times),
                "p50_s": round(statistics.median(times), 3),
                "max_s": round(max(times), 3),
                "all_s": [round(one, 3) for one in times],
            }
    found["load_average_after"] = os.getloadavg()
    return found


def move(nats: Nats) -> None:
    """Move the leadership to the other node."""
    access = ["--nats-url", nats.url, "--nats-user", USER, "--nats-password", PASSWORD]
    subprocess.run(
        [foldmq(), "nodes", "move", "--cluster=c1", *access],
        check=True,
        stdout=subprocess.DEVNULL,
        env=environment(),
    )


def through(nodes: Nodes, wanted: argparse.Namespace) -> dict[str, Any]:
    """Compare the leader with an edge."""
    leader = nodes.leader
    (other,) = (one for one in nodes.members if one is not leader)
    rates: dict[str, list[float]] = {"direct": [], "edge": []}
    latencies: dict[str, list[float]] = {"direct": [], "edge": []}
    for number in range(wanted.rounds):
        for name, port in (("direct", leader.port), ("edge", other.port)):
            for options, into, field in (
                (["-n", str(wanted.messages)], rates, "recv_per_s"),
                (["-n", "6000", "-r", "1000"], latencies, "latency_us"),
            ):
                result = run_load([*_PAIRS, *options], port, leader.pid)
                if "problem" in result:
                    raise BenchError(result["problem"])
                value = result[field]
                into[name].append(value["p50"] / 1000 if isinstance(value, dict) else value)
            say(f"round {number + 1}, {name}: {rates[name][-1]:.0f}/s, {latencies[name][-1]} ms")
    ratios = [edge / direct for edge, direct in zip(rates["edge"], rates["direct"], strict=True)]
    more = [b - a for a, b in zip(latencies["direct"], latencies["edge"], strict=True)]
    return {
        "rates": rates,
        "ratio": round(statistics.median(ratios), 3),
        "p50_ms": latencies,
        "p50_more_ms": round(statistics.median(more), 3),
    }


if __name__ == "__main__":
    sys.exit(main())
