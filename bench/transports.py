"""Measures TLS and WebSocket beside plain TCP, and a thousand TLS clients that connect at once.

    python bench/transports.py [--seconds N] [--rounds N] [--storm N]

Throughput: 4 publishers and 4 subscribers at QoS 1, each with a topic of its own, 200 messages of
64 bytes on their way; the same generator for every transport, in a process of its own. ``frames``
means one WebSocket frame for each packet, as most client libraries do; ``ws`` and ``wss`` put what
is sent at once into one frame. A ratio is the median of the rounds, each of which measures all
transports one after the other.

The storm: so many clients connect by TLS at the same moment while one client on plain TCP
publishes to itself at QoS 1; its waiting time is reported before and within the storm.
"""

import argparse
import asyncio
import contextlib
import json
import os
import select
import selectors
import signal
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run by its path

from bench.brokers.broker_processes import ROOT, BenchError, cpu, free_port
from bench.brokers.mqtt_client import connect, publish, subscribe
from bench.measuring.progress import say

sys.path.append(str(ROOT / "tests"))
from harness.certs import Authority  # type: ignore[import-not-found]

PAIRS = 4
WINDOW = 200
PAYLOAD = 64
KINDS = ("plain", "tls", "ws", "wss", "ws frames", "wss frames")
_REQUEST = (
    b"GET /mqtt HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
)


class Place:
    """A broker with a listener of each kind."""

    def __init__(self, work: Path) -> None:
        self.authority = Authority(work / "certificates")
        self.ports = {name: free_port() for name in ("plain", "tls", "ws", "wss")}
        server = self.authority.server()
        schemes = {"plain": "tcp"}
        self._command = [sys.executable, "-m", "cli.main", "serve", "--log-format", "json"]
        for name, port in self.ports.items():
            self._command += ["--listen", f"{schemes.get(name, name)}://127.0.0.1:{port}"]
        self._command += ["--tls-cert", str(server.certificate), "--tls-key", str(server.key)]
        self._command += ["--data-dir", str(work / "data"), "--metrics", "off", "--web", "off"]
        self._log = work / "broker.log"
        self.pid = 0

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("FOLDMQ_")}
        with self._log.open("wb") as log:
            process = subprocess.Popen(
                self._command, cwd=ROOT, stdout=log, stderr=log, env=environment
            )
        self.pid = process.pid
        try:
            deadline = time.monotonic() + 60
            while '"event": "ready"' not in self._log.read_text("utf-8", "replace"):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise BenchError(f"the broker did not start, see {self._log}")
                time.sleep(0.05)
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


# ------------------------------------------------------------------ throughput


def framed(data: bytes) -> bytes:
    """Return a client frame with these bytes, masked with zeros."""
    size = len(data)
    if size < 126:
        return bytes([0x82, 0x80 | size]) + bytes(4) + data
    return b"\x82\xfe" + size.to_bytes(2, "big") + bytes(4) + data


class Link:
    """A connection that sends and receives as fast as it can; ``one`` is one packet per frame."""

    def __init__(self, port: int, context: ssl.SSLContext | None, *, web: bool, one: bool) -> None:
        self.web, self.one = web, one
        self.sock: socket.socket = socket.create_connection(("127.0.0.1", port), 30)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is not None:
            self.sock = context.wrap_socket(self.sock, server_hostname="localhost")
        self._rest = b""
        if web:
            self.sock.sendall(_REQUEST)
            answer = b""
            while not answer.endswith(b"\r\n\r\n"):
                answer += self.sock.recv(65536)
            if b" 101 " not in answer:
                raise BenchError("the broker refused a WebSocket")
        self._out = b""

    def packed(self, packets: list[bytes]) -> bytes:
        """Return packets as TLS bytes."""
        if not self.web:
            return b"".join(packets)
        if self.one:
            return b"".join(map(framed, packets))
        return framed(b"".join(packets))

    def send(self, data: bytes) -> None:
        self._out += data
        self.flush()

    def flush(self) -> bool:
        """Send as much as possible; return whether bytes are left."""
        while self._out:
            try:
                count = self.sock.send(self._out)
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                break
            self._out = self._out[count:]
        return bool(self._out)

    def receive(self) -> bytes:
        """Return the received MQTT bytes."""
        parts: list[bytes] = []
        with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError):
            while len(parts) < 16:
                part = self.sock.recv(262144)
                if not part:
                    raise BenchError("the broker closed a connection")
                parts.append(part)
                if self.sock.gettimeout() or not isinstance(self.sock, ssl.SSLSocket):
                    break
        data = b"".join(parts)
        return self._unframed(data) if self.web else data

    def _unframed(self, data: bytes) -> bytes:
        data = self._rest + data
        parts, at = [], 0
        while len(data) - at >= 2:
            size, head = data[at + 1], 2
            if size == 126 and len(data) - at >= 4:
                size, head = int.from_bytes(data[at + 2 : at + 4], "big"), 4
            elif size == 127 and len(data) - at >= 10:
                size, head = int.from_bytes(data[at + 2 : at + 10], "big"), 10
            elif size >= 126:
                break
            if len(data) - at < head + size:
                break
            parts.append(data[at + head : at + head + size])
            at += head + size
        self._rest = data[at:]
        return b"".join(parts)


class Publisher:
    """Keeps ``WINDOW`` messages on their way."""

    def __init__(self, link: Link, topic: str) -> None:
        self.link = link
        self.done = 0
        self._batch = link.packed([publish(topic, bytes(PAYLOAD), i + 1) for i in range(WINDOW)])
        self._half = link.packed(
            [publish(topic, bytes(PAYLOAD), i + 1) for i in range(WINDOW // 2)]
        )
        self._owed = 0
        self._bytes = 0

    def start(self) -> None:
        self.link.send(self._batch)

    def ready(self) -> None:
        self._bytes += len(self.link.receive())
        while self._bytes >= 4 * (WINDOW // 2):
            self._bytes -= 4 * (WINDOW // 2)
            self.done += WINDOW // 2
            self.link.send(self._half)


class Subscriber:
    """Acknowledges all messages; all packets have the length of the first."""

    def __init__(self, link: Link, topic: str) -> None:
        self.link = link
        self.done = 0
        self._size = len(publish(topic, bytes(PAYLOAD), 1))
        self._pid = 2 + 2 + len(topic)
        self._rest = b""

    def ready(self) -> None:
        data = self._rest + self.link.receive()
        count = len(data) // self._size
        self._rest = data[count * self._size :]
        if not count:
            return
        self.done += count
        step = 10 if self.link.one else 4
        acks = bytearray((b"\x82\x84\0\0\0\0" if step == 10 else b"") + b"\x40\x02\0\0") * count
        end = count * self._size
        acks[step - 2 :: step] = data[self._pid : end : self._size]
        acks[step - 1 :: step] = data[self._pid + 1 : end : self._size]
        if self.link.web and not self.link.one:
            for at in range(0, len(acks), 60_000):
                self.link.send(framed(bytes(acks[at : at + 60_000])))
        else:
            self.link.send(bytes(acks))


def generate(port: int, ca: str, kind: str, seconds: float) -> None:
    """Load one listener for a time; prints how many messages went through. A process of its own."""
    context = ssl.create_default_context(cafile=ca) if kind.startswith(("tls", "wss")) else None
    web, one = kind.startswith("w"), kind.endswith("frames")
    selector = selectors.DefaultSelector()
    ends: list[Publisher | Subscriber] = []
    for index in range(PAIRS):
        topic = f"load/{index}"
        for role in (Subscriber, Publisher):
            link = Link(port, context, web=web, one=one)
            link.sock.sendall(link.packed([connect(f"{role.__name__}{index}", clean=True)]))
            wanted = 4
            if role is Subscriber:
                link.sock.sendall(link.packed([subscribe(topic)]))
                wanted = 9
            got = b""
            while len(got) < wanted:
                got += link.receive()
            link.sock.setblocking(False)
            end = role(link, topic)
            ends.append(end)
            selector.register(link.sock, selectors.EVENT_READ, end)
    publishers = [end for end in ends if isinstance(end, Publisher)]
    subscribers = [end for end in ends if isinstance(end, Subscriber)]
    for publisher in publishers:
        publisher.start()

    def run(until: float) -> None:
        while time.perf_counter() < until:
            for key, _ in selector.select(0.1):
                key.data.ready()
            for end in ends:
                end.link.flush()

    run(time.perf_counter() + 0.5)  # warm
    before = sum(end.done for end in subscribers), sum(end.done for end in publishers)
    began = time.perf_counter()
    run(began + seconds)
    took = time.perf_counter() - began
    received = sum(end.done for end in subscribers) - before[0]
    acknowledged = sum(end.done for end in publishers) - before[1]
    print(json.dumps({"per_s": min(received, acknowledged) / took, "messages": received}))


def throughput(place: Place, kind: str, seconds: float) -> tuple[float, float]:
    """Return messages per second, and the broker's CPU time per message in microseconds."""
    words = ["--generate", kind, "--port", str(place.ports[kind.split()[0]])]
    words += ["--ca", str(place.authority.file), "--seconds", str(seconds)]
    used = cpu(place.pid)
    command = [sys.executable, str(Path(__file__).resolve()), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(done.stderr.strip().splitlines()[-1])
    used = cpu(place.pid) - used
    result = json.loads(done.stdout)
    whole = result["messages"] * (seconds + 0.5) / seconds  # the warm-up counts for the processor
    return result["per_s"], 1e6 * used / whole


# ------------------------------------------------------------------- handshakes


def connection_cost(place: Place, count: int, *, tls: bool, resumed: bool = False) -> float:
    """Return the broker's CPU time per connection in milliseconds."""
    context = ssl.create_default_context(cafile=str(place.authority.file))
    session = None
    used = 0.0
    for number in range(count + 1):
        if number == 1:
            used = cpu(place.pid)
        port = place.ports["tls" if tls else "plain"]
        with socket.create_connection(("127.0.0.1", port), 30) as sock:
            if not tls:
                sock.sendall(connect("", clean=True))
                sock.recv(4)
                continue
            with context.wrap_socket(sock, server_hostname="localhost", session=session) as safe:
                safe.sendall(connect("", clean=True))
                safe.recv(4)
                if resumed:
                    if number and not safe.session_reused:
                        raise BenchError("a TLS session was not resumed")
                    session = safe.session
    return 1000 * (cpu(place.pid) - used) / count


def steady(port: int) -> None:
    """Publish to itself until stdin ends; print time and latency of each message."""
    waits: list[tuple[float, float]] = []
    message = publish("steady", bytes(PAYLOAD), 1)
    with socket.create_connection(("127.0.0.1", port), 60) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = sock.makefile("rb")
        sock.sendall(connect("steady", clean=True) + subscribe("steady"))
        stream.read(4 + 5)
        print("ready", flush=True)
        while not select.select([sys.stdin], [], [], 0.005)[0]:
            began = time.monotonic()
            sock.sendall(message)
            stream.read(4 + len(message))
            waits.append((began, time.monotonic() - began))
            sock.sendall(b"\x40\x02\x00\x01")
    print(json.dumps(waits))


async def arrive(place: Place, count: int) -> float:
    """Connect this many TLS clients at once; return the seconds until the last CONNACK."""
    context = ssl.create_default_context(cafile=str(place.authority.file))

    async def client(number: int) -> None:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1",
            place.ports["tls"],
            ssl=context,
            server_hostname="localhost",
            ssl_handshake_timeout=60,
        )
        writer.write(connect(f"storm-{number}", clean=True))
        await reader.readexactly(4)
        writer.transport.abort()

    began = time.monotonic()
    await asyncio.gather(*(client(number) for number in range(count)))
    return time.monotonic() - began


def storm(place: Place, count: int) -> dict[str, float]:
    """Connect TLS clients while another process publishes to itself."""
    words = ["--steady", "--port", str(place.ports["plain"])]
    command = [sys.executable, str(Path(__file__).resolve()), *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(3)
        # Real clients run on other machines: these must not take the broker's CPU time.
        os.nice(10)
        began = time.monotonic()
        seconds = asyncio.run(arrive(place, count))
        ended = time.monotonic()
        told, _ = process.communicate("end\n", 60)
    waits = [(at, 1000 * wait) for at, wait in json.loads(told)]
    return {
        "served within s": seconds,
        "p99 before, ms": _p99([wait for at, wait in waits if at < began]),
        "p99 meanwhile, ms": _p99([wait for at, wait in waits if began <= at < ended]),
    }


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98] if len(values) > 1 else float("nan")


def measure(seconds: float, rounds: int, clients: int) -> None:
    """Measure all and print a table."""
    with tempfile.TemporaryDirectory(prefix="foldmq-bench-") as name:
        place = Place(Path(name))
        with place.running():
            found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
            for number in range(rounds):
                for kind in KINDS:
                    found[kind].append(throughput(place, kind, seconds))
                    rate, cost = found[kind][-1]
                    say(f"round {number + 1} {kind}: {rate:,.0f}/s, {cost:.2f} us/message")
            plain = connection_cost(place, 300, tls=False)
            full = connection_cost(place, 300, tls=True)
            again = connection_cost(place, 300, tls=True, resumed=True)
            result = storm(place, clients)
    print("| QoS 1, 4 x 4 | messages/s | of plain | broker us/message |")
    print("|---|---|---|---|")
    for kind, runs in found.items():
        ratio = statistics.median(
            run[0] / base[0] for run, base in zip(runs, found["plain"], strict=True)
        )
        rate, cost = (statistics.median(values) for values in zip(*runs, strict=True))
        print(f"| {kind} | {rate:,.0f} | {ratio:.0%} | {cost:.2f} |")
    print(
        f"\nA connection from first to last costs the broker {plain:.2f} ms, by TLS {full:.2f} ms, "
        f"by TLS resumed {again:.2f} ms."
    )
    print(f"{clients} TLS clients at once: " + ", ".join(f"{k} {v:.2f}" for k, v in result.items()))


def main() -> None:
    """Run as a script."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--storm", type=int, default=1000, help="clients")
    parser.add_argument("--generate", help=argparse.SUPPRESS)
    parser.add_argument("--steady", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--ca", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.generate:
        generate(chosen.port, chosen.ca, chosen.generate, chosen.seconds)
        return
    if chosen.steady:
        steady(chosen.port)
        return
    try:
        measure(chosen.seconds, chosen.rounds, chosen.storm)
    except BenchError as error:
        sys.exit(f"transports: {error}")


if __name__ == "__main__":
    main()
