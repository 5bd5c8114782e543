"""A replay: one client reads everything that the log has on a filter."""

import argparse
import socket
import time
from collections.abc import Callable
from typing import Any

from bench.brokers.broker_processes import BenchError, Foldmq, Running, cpu, running
from bench.brokers.mqtt_client import packet, text
from bench.loads.recovery_loads import fill, work_directory
from bench.measuring.metrics import Metric, value
from bench.measuring.progress import report
from bench.measuring.rows import Row, own_rows

MESSAGES, BYTES = 200_000, 100
_PUBLISHED = f"pubsub -p 4 -s 0 -t 4 -q 1 -w 200 -l {BYTES} -T 300"
_TIMEOUT = 60.0
_PUBLISH = 3

REPLAY = (
    Metric("QoS 0", "messages/s", value("qos0_per_s")),
    Metric("QoS 0, CPU", "us/message", value("qos0_us")),
    Metric("QoS 1", "messages/s", value("qos1_per_s")),
    Metric("QoS 1, CPU", "us/message", value("qos1_us")),
    Metric("messages", "", value("messages")),
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


def _replayed(server: Running, messages: int, qos: int) -> dict[str, Any]:
    """Return the rate at which a client gets the messages, and the broker's time for each."""
    connect = text("MQTT") + b"\x05\x02\x00\x00\x00" + text(f"replaying-{qos}")
    wanted = b"\x00\x01\x00" + text("$replay/all/bench/#") + bytes([qos])
    with socket.create_connection(("127.0.0.1", server.port), _TIMEOUT) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        before, started = cpu(server.pid), time.perf_counter()
        client.sendall(packet(0x10, connect) + packet(0x82, wanted))
        _receive(client, messages)
        seconds, used = time.perf_counter() - started, cpu(server.pid) - before
    return {f"qos{qos}_per_s": messages / seconds, f"qos{qos}_us": used * 1e6 / messages}


def _receive(client: socket.socket, messages: int) -> None:
    """Receive as many messages, and acknowledge those at QoS 1."""
    data = b""
    while messages > 0:
        more = client.recv(1 << 18)
        if not more:
            raise BenchError("the broker closed the connection of a replay")
        data += more
        acks, at = bytearray(), 0
        while (body := _body(data, at)) is not None:
            begin, end = body
            if data[at] >> 4 == _PUBLISH:
                messages -= 1
                if data[at] & 6:
                    topic_end = begin + 2 + int.from_bytes(data[begin : begin + 2], "big")
                    acks += b"\x40\x02" + data[topic_end : topic_end + 2]
            at = end
        data = data[at:]
        if acks:
            client.sendall(acks)


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


REPLAY_LOADS: dict[str, Callable[[argparse.Namespace], list[Row]]] = {"replay": measure_replay}
"""Loads by name."""
