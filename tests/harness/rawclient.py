"""A blocking MQTT client over a plain socket that sends exactly what a test requests.

It answers nothing by itself (no PUBACK, no PINGREQ), so that a test decides every byte.
"""

import contextlib
import itertools
import socket
import struct
import time
from collections import deque
from typing import Self, TypeVar

from harness import packets
from harness.packets import (
    Connack,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Unsuback,
    Will,
)

TIMEOUT = 8.0
"""Seconds to wait for something that must come."""
QUIET = 0.2
"""Seconds to listen for something that must not come."""

P = TypeVar("P")


class ConnectionClosedError(Exception):
    """The server closed the connection."""


class RawClient:
    """One TCP connection to `port`; `address` defaults to loopback."""

    parse = staticmethod(packets.parse)
    """Reads one packet of the server."""

    def __init__(self, port: int, address: str = "127.0.0.1") -> None:
        self.socket = socket.create_connection((address, port), timeout=TIMEOUT)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()
        self._unread: deque[Packet] = deque()
        self._ids = itertools.count(1)
        self.client_id = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------- sending

    def send(self, *data: bytes) -> None:
        """Sends the bytes in one piece."""
        self.socket.settimeout(TIMEOUT)
        self.socket.sendall(b"".join(data))

    def send_slowly(self, data: bytes, pause: float = 0.002) -> None:
        """Sends byte by byte, each in a segment of its own."""
        for index in range(len(data)):
            self.send(data[index : index + 1])
            time.sleep(pause)

    def close(self) -> None:
        """Closes the socket without a DISCONNECT."""
        self.socket.close()

    def reset(self) -> None:
        """Cuts the connection with a TCP reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def disconnect(self) -> None:
        """Sends DISCONNECT, waits until the server has closed too, and closes."""
        self.send(packets.disconnect())
        with contextlib.suppress(ConnectionClosedError):
            while True:
                self.receive()
        self.close()

    # ----------------------------------------------------------- receiving

    def receive(self, timeout: float = TIMEOUT) -> Packet:
        """The next packet; `ConnectionClosedError`, or TimeoutError after `timeout` seconds."""
        if self._unread:
            return self._unread.popleft()
        deadline = time.monotonic() + timeout
        while True:
            parts = packets.split(self._buffer)
            if parts is not None:
                first, body, size = parts
                del self._buffer[:size]
                return self.parse(first, body)
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"nothing came within {timeout} s")
            self.socket.settimeout(left)
            try:
                data = self.socket.recv(262_144)
            except TimeoutError:
                continue
            except ConnectionError as error:
                raise ConnectionClosedError(str(error)) from error
            if not data:
                if self._buffer:
                    raise packets.ServerViolationError(
                        f"closed inside a packet: {self._buffer[:32]!r}"
                    )
                raise ConnectionClosedError("end of stream")
            self._buffer += data

    def unread(self, received: list[Packet]) -> None:
        """Puts packets back, to be received next in this order."""
        self._unread.extendleft(reversed(received))

    def expect(self, expected: Packet) -> None:
        """The next packet must be exactly `expected`."""
        received = self.receive()
        assert received == expected, f"expected {expected}, received {received}"

    def expect_a(self, kind: type[P]) -> P:
        """The next packet must be of `kind`; returns it."""
        received = self.receive()
        assert isinstance(received, kind), f"expected a {kind.__name__}, received {received}"
        return received

    def expect_publish(
        self, topic: str, payload: bytes, qos: int = 0, *, dup: bool = False, retain: bool = False
    ) -> Publish:
        """The next packet must be this PUBLISH, with any packet identifier; returns it."""
        received = self.expect_a(Publish)
        wanted = Publish(topic, payload, qos, received.packet_id, dup, retain)
        assert received == wanted, f"expected {wanted}, received {received}"
        return received

    def expect_nothing(self, duration: float = QUIET) -> None:
        """Nothing may arrive for `duration` seconds, and the connection stays open."""
        try:
            received = self.receive(duration)
        except TimeoutError:
            return
        except ConnectionClosedError:
            raise AssertionError("the server closed the connection") from None
        raise AssertionError(f"expected nothing, received {received}")

    def expect_closed(self, timeout: float = TIMEOUT) -> None:
        """The server must close the connection, and send nothing more before it does."""
        try:
            received = self.receive(timeout)
        except ConnectionClosedError:
            return
        except TimeoutError:
            raise AssertionError("the server left the connection open") from None
        raise AssertionError(f"expected the connection to close, received {received}")

    def expect_alive(self) -> None:
        """The connection still works: a PINGREQ is answered, with nothing before the answer."""
        self.send(packets.pingreq())
        self.expect(packets.Pingresp())

    def receive_all(self, quiet: float = QUIET) -> list[Packet]:
        """Everything that comes until `quiet` seconds pass with nothing, or the connection ends."""
        received: list[Packet] = []
        with contextlib.suppress(TimeoutError, ConnectionClosedError):
            while True:
                received.append(self.receive(quiet))
        return received

    # ------------------------------------------------------------ dialogues

    def next_id(self) -> int:
        """A packet identifier not used before on this client object."""
        return next(self._ids)

    def connect(
        self,
        client_id: str = "",
        *,
        clean: bool = True,
        keepalive: int = 0,
        will: Will | None = None,
        username: str | None = None,
        password: bytes | None = None,
        protocol: str = "MQTT",
        level: int = 4,
    ) -> Connack:
        """Sends CONNECT and returns the CONNACK, whatever its code."""
        self.client_id = client_id
        self.send(
            packets.connect(
                client_id,
                clean=clean,
                keepalive=keepalive,
                will=will,
                username=username,
                password=password,
                protocol=protocol,
                level=level,
            )
        )
        return self.expect_a(Connack)

    def subscribe(self, *filters: tuple[str, int], packet_id: int | None = None) -> tuple[int, ...]:
        """Subscribes and returns the codes of the SUBACK, which must be the next packet."""
        packet_id = packet_id or self.next_id()
        self.send(packets.subscribe(packet_id, *filters))
        answer = self.expect_a(Suback)
        assert answer.packet_id == packet_id, f"{answer} for packet identifier {packet_id}"
        assert len(answer.codes) == len(filters), f"{answer} for {len(filters)} filters"
        return answer.codes

    def unsubscribe(self, *filters: str) -> None:
        """Unsubscribes; the UNSUBACK must be the next packet."""
        packet_id = self.next_id()
        self.send(packets.unsubscribe(packet_id, *filters))
        self.expect(Unsuback(packet_id))

    def publish(
        self,
        topic: str,
        payload: bytes = b"",
        qos: int = 0,
        *,
        packet_id: int | None = None,
        dup: bool = False,
        retain: bool = False,
    ) -> None:
        """Publishes and plays the whole acknowledgement dialogue of `qos`."""
        number = (packet_id or self.next_id()) if qos else None
        self.send(packets.publish(topic, payload, qos, number, dup=dup, retain=retain))
        if number is not None and qos == 1:
            self.expect(Puback(number))
        elif number is not None:
            self.expect(Pubrec(number))
            self.release(number)

    def release(self, packet_id: int) -> None:
        """Sends PUBREL; the PUBCOMP must be the next packet."""
        self.send(packets.pubrel(packet_id))
        self.expect(Pubcomp(packet_id))

    def acknowledge(self, message: Publish) -> None:
        """Plays the receiver's part for a message just received, up to its end."""
        if message.packet_id is None:
            return
        if message.qos == 1:
            self.send(packets.puback(message.packet_id))
        else:
            self.send(packets.pubrec(message.packet_id))
            self.expect(Pubrel(message.packet_id))
            self.send(packets.pubcomp(message.packet_id))
