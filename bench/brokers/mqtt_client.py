"""A small MQTT 3.1.1 client over blocking sockets, for loads that mqttload does not have."""

import contextlib
import socket
import time
from collections.abc import Iterator
from typing import Self

from bench.brokers.broker_processes import BenchError

CONNACK, PUBLISH, PUBACK, SUBACK = 2, 3, 4, 9
TIMEOUT = 60  # seconds
# Connections at a time, and their addresses: one address has too few ports.
_AT_ONCE = 200
_SOURCES = 20


def text(value: str) -> bytes:
    data = value.encode()
    return len(data).to_bytes(2, "big") + data


def packet(first: int, body: bytes) -> bytes:
    length = len(body)
    head = bytearray([first])
    while True:
        length, digit = divmod(length, 128)
        head.append(digit | 128 if length else digit)
        if not length:
            return bytes(head) + body


def connect(
    session: str, *, clean: bool = False, user: str | None = None, password: str = ""
) -> bytes:
    """Return a CONNECT without keep alive."""
    flags = 2 * clean + (0xC0 if user is not None else 0)
    shown = text(user) + text(password) if user is not None else b""
    return packet(0x10, text("MQTT") + bytes([4, flags, 0, 0]) + text(session) + shown)


def subscribe(*topic_filters: str, qos: int = 1) -> bytes:
    """Return a SUBSCRIBE."""
    wanted = b"".join(text(topic_filter) + bytes([qos]) for topic_filter in topic_filters)
    return packet(0x82, b"\x00\x01" + wanted)


def publish(topic: str, payload: bytes, pid: int) -> bytes:
    """Return a PUBLISH at QoS 1."""
    return packet(0x32, text(topic) + pid.to_bytes(2, "big") + payload)


class Client:
    """One connection; raises BenchError when the broker closes it."""

    def __init__(self, port: int, source: int = 1) -> None:
        self._socket = socket.create_connection(
            ("127.0.0.1", port), TIMEOUT, source_address=(f"127.0.0.{source}", 0)
        )
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._data = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def receive(self) -> tuple[int, bytes]:
        """Return the next packet: its type, and the bytes after its fixed header."""
        while True:
            found = self._first()
            if found is not None:
                return found
            with contextlib.suppress(ConnectionResetError):
                data = self._socket.recv(65536)
                if data:
                    self._data += data
                    continue
            raise BenchError("the broker closed a connection")

    def expect(self, kind: int) -> bytes:
        """Return the body of the next packet, which must be of this type."""
        found, body = self.receive()
        if found != kind:
            raise BenchError(f"the broker sent a packet of type {found}, not {kind}")
        return body

    def close(self) -> None:
        """Send DISCONNECT and close."""
        with contextlib.suppress(OSError):
            self._socket.sendall(b"\xe0\x00")
        self._socket.close()

    def _first(self) -> tuple[int, bytes] | None:
        length = shift = 0
        for at in range(1, min(len(self._data), 5)):
            length |= (self._data[at] & 127) << shift
            shift += 7
            if self._data[at] < 128:
                end = at + 1 + length
                if len(self._data) < end:
                    return None
                kind, body = self._data[0] >> 4, bytes(self._data[at + 1 : end])
                del self._data[:end]
                return kind, body
        return None


def session_name(index: int) -> str:
    return f"client-{index:07d}"


def make_sessions(port: int, count: int) -> Iterator[int]:
    """Create offline persistent sessions with one subscription each; yield their number."""
    for first in range(0, count, _AT_ONCE):
        source = first // _AT_ONCE % _SOURCES + 1
        made = range(first, min(first + _AT_ONCE, count))
        with contextlib.ExitStack() as stack:
            clients = []
            for index in made:
                client = stack.enter_context(Client(port, source))
                topic = f"devices/dev{index:07d}/cmd"
                client.send(connect(session_name(index)) + subscribe(topic))
                clients.append(client)
            for client in clients:
                client.expect(CONNACK)
                client.expect(SUBACK)
        yield made.stop


def fill_queue(port: int, session: str, count: int, window: int) -> None:
    """Queue messages for an offline session, ``window`` at a time."""
    topic = f"queues/{session}"
    with Client(port) as client:
        client.send(connect(session) + subscribe(topic))
        client.expect(CONNACK)
        client.expect(SUBACK)
    with Client(port) as client:
        client.send(connect("publisher", clean=True))
        client.expect(CONNACK)
        for first in range(1, count + 1, window):
            pids = range(first, min(first + window, count + 1))
            client.send(b"".join(publish(topic, pid.to_bytes(64, "big"), pid) for pid in pids))
            for _ in pids:
                client.expect(PUBACK)


def present(port: int, session: str) -> bool:
    """Return whether the broker has a session."""
    with Client(port) as client:
        client.send(connect(session))
        return client.expect(CONNACK) == b"\x01\x00"


def first_message(port: int, session: str, count: int) -> float:
    """Return the seconds from CONNECT to a session's first PUBLISH; all ``count`` must come."""
    with Client(port) as client:
        started = time.perf_counter()
        client.send(connect(session))
        client.expect(CONNACK)
        client.expect(PUBLISH)
        seconds = time.perf_counter() - started
        for _ in range(count - 1):
            client.expect(PUBLISH)
    return seconds
