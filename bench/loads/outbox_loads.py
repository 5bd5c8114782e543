"""Loads of the outbox: how fast destinations catch up, and what that costs.

The log is filled while the destination is paused. Then it goes on, and gets everything from the
log. Processor time is that of the broker, its NATS server and the outbox together, without that of
what receives the messages.

Four publishers with full windows write large events. In the loads ``-500``, each message is an
event of its own, which is more to read: 500 publishers have one message in flight each. In
``out1-20`` the other broker allows 20 messages in flight, as Mosquitto does by default.
"""

import argparse
import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

from bench.brokers.broker_processes import (
    ROOT,
    BenchError,
    Foldmq,
    Mosquitto,
    Running,
    cpu,
    processes_of,
    running,
)
from bench.brokers.mqtt_client import CONNACK, PUBLISH, SUBACK, Client, connect, packet, subscribe
from bench.brokers.mqtt_client import text as field
from bench.loads.recovery_loads import fill, work_directory
from bench.measuring.load_generator import run_load
from bench.measuring.metrics import Metric, Target, value
from bench.measuring.progress import report
from bench.measuring.rows import Row, own_rows
from bench.processes.web_receiver import WebReceiver

MESSAGES = {1: 300_000, 2: 150_000}
"""Messages to another broker, by QoS."""
POSTED = 400_000
TRACED = 100_000
_PAYLOAD = 64
"""Bytes of each message of mqttload."""
BEHIND = 3_000_000
"""Messages that are being sent while the latency of others is measured."""
PAIRS = 5
_BULK = "-p 4 -s {subscribers} -t 40 -w 200"
_SINGLE = "-p 500 -s {subscribers} -t 500 --topic-by-pub -w 1"
_SUBSCRIBERS = {_BULK: 4, _SINGLE: 500}
_LIVE = "pubsub -p 500 -s 500 -t 500 --topic-by-pub -q 1 -w 1 -T 300 -n"
_LIVE_MESSAGES = 60_000
OTHERS = "pubsub -p 50 -s 50 -t 50 --topic-by-pub -q 1 -w 1000 -T 300 -r 1000 -n 10000"
_NAME = "sent"
_TIMEOUT = 300.0
_QUIET = 0.03
"""Processor seconds in half a second below which a broker has nothing left to do."""


def _metrics(rate: int, cost: int, each: str = "message") -> tuple[Metric, ...]:
    return (
        Metric("sent", f"{each}s/s", value("per_s"), (Target(rate, aim=True),)),
        Metric(
            "CPU",
            f"us/{each}",
            value("us"),
            (Target(cost, at_most=True, aim=True),) if cost else (),
            less=True,
        ),
        Metric("CPU of the outbox", f"us/{each}", value("outbox_us"), less=True),
        Metric("log read and sent", f"{each}s", value("count")),
    )


OUT = {1: _metrics(30_000, 25), 2: _metrics(15_000, 25)}
POST = _metrics(40_000, 0)
SPANS = _metrics(20_000, 0, "span")
BESIDE = (
    Metric("p99 above 1.25 times", "ms", value("above"), (Target(1, at_most=True, aim=True),)),
    Metric("p99, destination paused", "ms", value("paused_p99")),
    Metric("p99, destination at full speed", "ms", value("sending_p99")),
    Metric("p50, destination paused", "ms", value("paused_p50")),
    Metric("p50, destination at full speed", "ms", value("sending_p50")),
    Metric("sent meanwhile", "messages/s", value("per_s")),
)
IDLE = (
    Metric("pairs with / without", "", value("ratio"), (Target(0.97, aim=True),)),
    Metric("CPU with / without", "", value("us_ratio"), less=True),
    Metric("pairs with", "messages/s", value("with")),
    Metric("pairs without", "messages/s", value("without")),
    Metric("CPU with", "us/message", value("with_us"), less=True),
    Metric("CPU without", "us/message", value("without_us"), less=True),
    Metric("CPU of the outbox", "us/message", value("outbox_us"), less=True),
)


class Sending(Foldmq):
    """foldmq with the destination of the file ``foldmq.toml`` in its work directory."""

    name = "sending"
    title = "foldmq with a destination"

    @classmethod
    def command(cls, port: int, work: Path) -> list[str]:
        return [*super().command(port, work), "--config", str(work / "foldmq.toml")]


class Peer(Mosquitto):
    """The other broker: it counts what it receives, each second."""

    window: ClassVar[int] = 1000
    """Messages in flight that it lets a client have."""

    @classmethod
    def command(cls, port: int, work: Path) -> list[str]:
        words = super().command(port, work)
        with Path(words[-1]).open("a", encoding="utf-8") as config:
            config.write(f"sys_interval 1\nmax_inflight_messages {cls.window}\n")
        return words


class UsualPeer(Peer):
    """The same with the window that Mosquitto has without a setting."""

    window = 20


class Usage:
    """Processor time of a broker and its processes from now on."""

    def __init__(self, server: Running) -> None:
        self._before = {pid: cpu(pid) for pid in processes_of(server.pid)}

    def figures(self, count: int) -> dict[str, float]:
        """Return the microseconds for each of some messages: of all, and of the outbox."""
        used = {pid: cpu(pid) - before for pid, before in self._before.items()}
        outbox = sum(seconds for pid, seconds in used.items() if _is_outbox(pid))
        return {"us": sum(used.values()) * 1e6 / count, "outbox_us": outbox * 1e6 / count}


def _is_outbox(pid: int) -> bool:
    return b"outbox" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")


# ----------------------------------------------------------------------------- to another broker


def measure_out(
    options: argparse.Namespace, qos: int, clients: str = _BULK, kind: type[Peer] = Peer
) -> list[Row]:
    """Send a log to a Mosquitto on the same machine."""
    if not Peer.installed():
        raise BenchError("Mosquitto is not installed (on Debian: apt install mosquitto)")
    count = _count(MESSAGES[qos], clients, options)
    load = f"{_load(clients)} -q {qos} -n {count}"
    name = _name(f"out{qos}" if kind is Peer else f"out{qos}-{kind.window}", clients)
    return _repeated(name, OUT[qos], options, lambda work: _send_out(work, load, count, qos, kind))


def _load(clients: str, *, received: bool = False) -> str:
    """Return the load that fills the log; ``received``: its messages have receivers."""
    return "pubsub -T 300 " + clients.format(subscribers=_SUBSCRIBERS[clients] if received else 0)


def _name(load: str, clients: str) -> str:
    return load if clients == _BULK else f"{load}-500"


def _count(messages: int, clients: str, options: argparse.Namespace) -> int:
    """Return the number of messages in the log: fewer if it takes long to write them."""
    messages //= 1 if clients == _BULK else 4
    return messages // 10 if options.quick else messages


def _send_out(work: Path, load: str, messages: int, qos: int, kind: type[Peer]) -> dict[str, Any]:
    beside = work / "peer"
    beside.mkdir()
    with running(kind, beside) as peer, Client(peer.port) as client:
        client.send(connect("marks", clean=True) + subscribe("mark/#", qos=0))
        client.expect(CONNACK)
        client.expect(SUBACK)
        table = (
            f'[connection.{_NAME}]\naddresses = ["127.0.0.1:{peer.port}"]\n'
            f'topic = ["bench/# out {qos}", "mark/# out {qos}"]\nnotifications = false\n'
        )
        with _paused(work, table) as server:
            _publish_mark(server, qos)
            fill(server, load)
            _publish_mark(server, qos)
            usage = _resumed(server, work)
            client.expect(PUBLISH)
            began = time.perf_counter()
            client.expect(PUBLISH)
            seconds = time.perf_counter() - began
            figures = usage.figures(messages)
            expected = messages * _PAYLOAD + 2
            received = _received_by(client, expected)
        result: dict[str, Any] = {"per_s": messages / seconds, "count": messages, **figures}
        if received != expected:
            result["problem"] = f"Mosquitto received {received} of {expected} bytes"
        return result


def _publish_mark(server: Running, qos: int) -> None:
    """Publish a message on a topic of its own, before and behind the others."""
    body = field("mark/x") + b"\x00\x01x"
    with Client(server.port) as client:
        client.send(connect("marking", clean=True) + packet(0x30 | qos << 1, body))
        client.expect(CONNACK)
        client.expect(4 if qos == 1 else 5)
        if qos == 2:
            client.send(b"\x62\x02\x00\x01")
            client.expect(7)


def _received_by(client: Client, expected: int) -> int:
    """Return the bytes in the payloads that a Mosquitto has received.

    Its count of messages leaves those at QoS 2 out.
    """
    client.send(subscribe("$SYS/broker/publish/bytes/received", qos=0))
    client.expect(SUBACK)
    number = 0
    with contextlib.suppress(TimeoutError):
        while number < expected:
            body = client.expect(PUBLISH)
            number = int(body[2 + int.from_bytes(body[:2], "big") :])
    return number


# ----------------------------------------------------------------------------- to a web server


def measure_http(options: argparse.Namespace, clients: str = _BULK) -> list[Row]:
    """Post a log to a web server, as CloudEvents in batches."""
    count = _count(POSTED, clients, options)
    load = f"{_load(clients)} -q 1 -n {count}"
    table, receive = 'kind = "http"\nfilters = ["bench/#"]\n', (b'"specversion"', count)
    name = _name("http-sink", clients)
    return _repeated(name, POST, options, lambda work: _post(work, table, load, *receive))


def measure_spans(options: argparse.Namespace, clients: str = _BULK) -> list[Row]:
    """Send the spans of a log to a collector: one of publishing, one of delivery each."""
    count = _count(TRACED, clients, options)
    load = f"{_load(clients, received=True)} -q 1 -n {count}"
    table, receive = 'kind = "otlp"\n', (b'"startTimeUnixNano"', 2 * count)
    name = _name("spans", clients)
    return _repeated(name, SPANS, options, lambda work: _post(work, table, load, *receive))


def _post(work: Path, table: str, arguments: str, mark: bytes, expected: int) -> dict[str, Any]:
    with WebReceiver(mark, expected) as receiver:
        whole = f'[sink.{_NAME}]\nurl = "{receiver.url}"\n{table}'
        with _paused(work, whole) as server:
            fill(server, arguments)
            usage = _resumed(server, work)
            complete = receiver.complete.wait(_TIMEOUT)
            figures = usage.figures(expected)
        result: dict[str, Any] = {"per_s": receiver.rate, "count": receiver.count, **figures}
        if not complete:
            result["problem"] = f"{receiver.count} of {expected} came"
        return result


# ----------------------------------------------------------------------------- beside others


def measure_beside(options: argparse.Namespace) -> list[Row]:
    """Measure the latency of clients while a destination catches up, and while it is paused."""
    messages = BEHIND // 10 if options.quick else BEHIND
    return _repeated("sink-beside", BESIDE, options, lambda work: _latency_beside(work, messages))


def _latency_beside(work: Path, messages: int) -> dict[str, Any]:
    result: dict[str, Any] = {}
    with WebReceiver(b'"specversion"', sys.maxsize) as receiver:
        table = f'[sink.{_NAME}]\nkind = "http"\nurl = "{receiver.url}"\nfilters = ["bench/#"]\n'
        with _paused(work, table) as server:
            fill(server, f"{_load(_BULK)} -q 1 -n {messages}")
            _resumed(server, work, resume=False)
            for state in ("paused", "sending"):
                if state == "sending":
                    _outbox(work, "resume")
                    receiver.began.wait(_TIMEOUT)
                load = run_load(OTHERS.split(), server.port, server.pid)
                if "problem" in load:
                    return load
                for percentile in ("p50", "p99"):
                    result[f"{state}_{percentile}"] = load["latency_us"][percentile] / 1000
            result["per_s"] = receiver.rate
            if receiver.count >= messages:
                result["problem"] = "the destination had caught up before the end"
    return result | {"above": result["sending_p99"] - 1.25 * result["paused_p99"]}


def measure_idle(options: argparse.Namespace) -> list[Row]:
    """Measure in pairs what a destination costs that has no messages; a ratio is their median."""
    pairs = 2 if options.quick else max(PAIRS, options.rounds)
    messages = _LIVE_MESSAGES // 10 if options.quick else _LIVE_MESSAGES
    runs: dict[str, list[dict[str, float]]] = {"with": [], "without": []}
    for pair in range(pairs):
        for state in ("with", "without") if pair % 2 else ("without", "with"):
            with work_directory(options) as work:
                runs[state].append(_live(work, messages, has_destination=state == "with"))
    result: dict[str, Any] = {}
    for key, name in (("per_s", ""), ("us", "_us")):
        ratios = [
            one[key] / other[key] for one, other in zip(runs["with"], runs["without"], strict=True)
        ]
        result["us_ratio" if name else "ratio"] = statistics.median(ratios)
        for state, measured in runs.items():
            result[state + name] = statistics.median(run[key] for run in measured)
    result["outbox_us"] = statistics.median(run["outbox_us"] for run in runs["with"])
    report("sink-idle", f"{pairs} pairs", IDLE, result)
    return own_rows("sink-idle", IDLE, [result], quick=options.quick)


def _live(work: Path, messages: int, *, has_destination: bool) -> dict[str, float]:
    """Return the rate of messages that no destination gets, and the processor time of each."""
    table = '[sink.idle]\nkind = "http"\nurl = "http://127.0.0.1:9"\nfilters = ["other/#"]\n'
    (work / "foldmq.toml").write_text(table if has_destination else "", "utf-8")
    with running(Sending, work) as server:
        usage = _resumed(server, work, resume=False)
        load = run_load(f"{_LIVE} {messages}".split(), server.port, server.pid)
        figures = usage.figures(messages)
    if "problem" in load:
        raise BenchError(f"mqttload {_LIVE} {messages}: {load['problem']}")
    return {"per_s": load["recv_per_s"], **figures}


# ----------------------------------------------------------------------------- parts


def _repeated(
    name: str,
    metrics: tuple[Metric, ...],
    options: argparse.Namespace,
    measure: Callable[[Path], dict[str, Any]],
) -> list[Row]:
    """Measure with fresh brokers; return the rows."""
    runs: list[dict[str, Any]] = []
    for repetition in range(options.rounds):
        with work_directory(options) as work:
            runs.append(measure(work))
        report(name, f"{repetition + 1}/{options.rounds}", metrics, runs[-1])
    return own_rows(name, metrics, runs, quick=options.quick)


@contextlib.contextmanager
def _paused(work: Path, table: str) -> Iterator[Running]:
    """Run a broker whose destination is paused."""
    (work / "foldmq.toml").write_text(table, "utf-8")
    with running(Sending, work) as server:
        _outbox(work, "pause")
        yield server


def _resumed(server: Running, work: Path, *, resume: bool = True) -> Usage:
    """Wait until a broker is quiet, and let its destination go on; return its usage from here."""
    deadline = time.monotonic() + _TIMEOUT
    while True:
        usage = Usage(server)
        time.sleep(0.5)
        if usage.figures(1)["us"] < _QUIET * 1e6:
            break
        if time.monotonic() > deadline:
            raise BenchError("a broker with a paused destination does not become quiet")
    usage = Usage(server)
    if resume:
        _outbox(work, "resume")
    return usage


def _outbox(work: Path, action: str) -> None:
    command = [sys.executable, "-m", "cli.main", "outbox", action, _NAME]
    where = ["--data-dir", str(work / "data")]
    done = subprocess.run([*command, *where], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"outbox {action}: {done.stderr.strip()}")


OUTBOX_LOADS: dict[str, Callable[[argparse.Namespace], list[Row]]] = {
    "out1": lambda options: measure_out(options, 1),
    "out1-20": lambda options: measure_out(options, 1, kind=UsualPeer),
    "out1-500": lambda options: measure_out(options, 1, _SINGLE),
    "out2": lambda options: measure_out(options, 2),
    "out2-500": lambda options: measure_out(options, 2, _SINGLE),
    "http-sink": measure_http,
    "http-sink-500": lambda options: measure_http(options, _SINGLE),
    "spans": measure_spans,
    "spans-500": lambda options: measure_spans(options, _SINGLE),
    "sink-idle": measure_idle,
    "sink-beside": measure_beside,
}
"""Loads by name."""
