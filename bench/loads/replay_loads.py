"""A replay: one client reads everything that the log has on a filter."""

import argparse
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

from bench.brokers.broker_processes import (
    BenchError,
    Foldmq,
    Running,
    cpu,
    cpu_of_all,
    running,
)
from bench.brokers.mqtt_client import packet, text
from bench.loads.inspection_loads import (
    PACED_MESSAGES,
    PACED_RATE,
    measure_pairs,
    paced_latency,
    pair,
)
from bench.loads.recovery_loads import fill, work_directory
from bench.measuring.metrics import Metric, Target, value
from bench.measuring.progress import report
from bench.measuring.rows import Row, own_rows

MESSAGES, BYTES = 200_000, 100
_PUBLISHED = f"pubsub -p 4 -s 0 -t 4 -q 1 -w 200 -l {BYTES} -T 300"
_TIMEOUT = 60.0
_PUBLISH = 3
_PUBACK = b"\x40\x02"

REPLAY = (
    Metric("QoS 0", "messages/s", value("qos0_per_s"), (Target(150_000, aim=True),)),
    Metric("QoS 0, CPU", "us/message", value("qos0_us"), (Target(4, at_most=True, aim=True),)),
    Metric("QoS 0, CPU of all processes", "us/message", value("qos0_all_us")),
    Metric("QoS 1", "messages/s", value("qos1_per_s"), (Target(60_000, aim=True),)),
    Metric("QoS 1, CPU", "us/message", value("qos1_us"), (Target(9, at_most=True, aim=True),)),
    Metric("QoS 1, CPU of all processes", "us/message", value("qos1_all_us")),
    Metric("messages", "", value("messages")),
)
BESIDE = (
    *pair("p50", "ms", "p50"),
    *pair("p99", "ms", "p99"),
    Metric(
        "p99 with - 1.25 x without",
        "ms",
        lambda result: result["with_p99"] - 1.25 * result["without_p99"],
        (Target(1, at_most=True, aim=True),),
    ),
    Metric("replayed meanwhile", "messages/s", value("with_replayed_per_s")),
)


def measure_replay(options: argparse.Namespace) -> list[Row]:
    """Replay a log of small messages to an MQTT 5 client at QoS 0, and at QoS 1, acknowledged."""
    messages = MESSAGES // 10 if options.quick else MESSAGES
    runs: list[dict[str, Any]] = []
    with work_directory(options) as work:
        with running(Foldmq, work) as server:
            fill(server, f"{_PUBLISHED} -n {messages}")
        for repetition in range(options.rounds):
            result: dict[str, Any] = {"messages": messages}
            for qos in (0, 1):
                with running(Foldmq, work) as server:
                    result |= _replayed(server, messages, qos)
            runs.append(result)
            report("replay", f"{repetition + 1}/{options.rounds}", REPLAY, result)
    return own_rows("replay", REPLAY, runs, quick=options.quick)


def measure_beside(options: argparse.Namespace) -> list[Row]:
    """Measure the latency of 5,000 messages a second while a client replays the log, or none."""
    part = 10 if options.quick else 1

    def run(replaying: bool) -> dict[str, Any]:
        with work_directory(options) as work, running(Foldmq, work) as server:
            fill(server, f"{_PUBLISHED} -n {MESSAGES // part}")
            if not replaying:
                return paced_latency(server, PACED_RATE, PACED_MESSAGES // part)
            with Replaying(server, MESSAGES // part) as client:
                began = time.perf_counter()
                result = paced_latency(server, PACED_RATE, PACED_MESSAGES // part)
                seconds, got = time.perf_counter() - began, client.received
            if client.problem is not None:
                return {"problem": client.problem}
            return {**result, "replayed_per_s": got / seconds}

    return measure_pairs("replay-beside", BESIDE, run, options)


class Replaying:
    """A client that replays a number of messages again and again, each time as a new session."""

    def __init__(self, server: Running, messages: int) -> None:
        self._server = server
        self._messages = messages
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._replay)
        self.received = 0
        self.problem: str | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _replay(self) -> None:
        try:
            while not self._ended.is_set():
                with _subscribed(self._server, 1) as client:
                    for count in _received(client, self._messages):
                        self.received += count
                        if self._ended.is_set():
                            break
        except (OSError, BenchError) as error:
            self.problem = f"the replay failed: {error}"


def _replayed(server: Running, messages: int, qos: int) -> dict[str, Any]:
    """Return the rate at which a client gets the messages, and the processor time for each."""
    before, all_before, started = cpu(server.pid), cpu_of_all(server.pid), time.perf_counter()
    with _subscribed(server, qos) as client:
        for _ in _received(client, messages):
            pass
        seconds = time.perf_counter() - started
    used, all_used = cpu(server.pid) - before, cpu_of_all(server.pid) - all_before
    return {
        f"qos{qos}_per_s": messages / seconds,
        f"qos{qos}_us": used * 1e6 / messages,
        f"qos{qos}_all_us": all_used * 1e6 / messages,
    }


@contextlib.contextmanager
def _subscribed(server: Running, qos: int) -> Iterator[socket.socket]:
    """Yield the connection of a client that replays everything in the log."""
    connect = text("MQTT") + b"\x05\x02\x00\x00\x00" + text(f"replaying-{qos}")
    wanted = b"\x00\x01\x00" + text("$replay/all/bench/#") + bytes([qos])
    with socket.create_connection(("127.0.0.1", server.port), _TIMEOUT) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.sendall(packet(0x10, connect) + packet(0x82, wanted))
        yield client


def _received(client: socket.socket, messages: int) -> Iterator[int]:
    """Receive as many messages, and acknowledge those at QoS 1; yield how many came together."""
    data = b""
    while messages > 0:
        more = client.recv(1 << 18)
        if not more:
            raise BenchError("the broker closed the connection of a replay")
        data += more
        count, at = 0, 0
        acknowledged: list[bytes] = []
        while (body := _body(data, at)) is not None:
            begin, end = body
            first = data[at]
            if first >> 4 == _PUBLISH:
                count += 1
                if first & 6:
                    topic_end = begin + 2 + (data[begin] << 8 | data[begin + 1])
                    acknowledged.append(data[topic_end : topic_end + 2])
            at = end
        data = data[at:]
        messages -= count
        if acknowledged:
            client.sendall(_PUBACK + _PUBACK.join(acknowledged))
        yield count


def _body(data: bytes, at: int) -> tuple[int, int] | None:
    """Return where the body of a packet begins and ends; None: it is not complete."""
    length = shift = 0
    for place in range(at + 1, min(len(data), at + 5)):
        length |= (data[place] & 127) << shift
        shift += 7
        if data[place] < 128:
            end = place + 1 + length
            return (place + 1, end) if end <= len(data) else None
    return None


REPLAY_LOADS: dict[str, Callable[[argparse.Namespace], list[Row]]] = {
    "replay": measure_replay,
    "replay-beside": measure_beside,
}
"""Loads by name."""
