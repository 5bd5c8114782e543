"""A blocking MQTT 5.0 client that sends exactly what a test requests, and a factory for it."""

import contextlib
from collections.abc import Callable, Iterable
from typing import TypeAlias

from harness import mqtt5_packets, packets
from harness.broker import Broker
from harness.fixtures import Clients, unique
from harness.mqtt5_packets import (
    MAXIMUM_PACKET_SIZE,
    SESSION_EXPIRY,
    TOPIC_ALIAS,
    TOPIC_ALIAS_MAXIMUM,
    Answer,
    Packet,
    Properties,
    Publish,
    Will,
)
from harness.packets import PUBACK, PUBCOMP, PUBREC, PUBREL, SUBACK, UNSUBACK, ServerViolationError
from harness.rawclient import TIMEOUT, ConnectionClosedError, RawClient


class RawClient5(RawClient):
    """As `RawClient`; of each packet it checks that the client allowed its size and its alias."""

    def __init__(self, port: int, address: str = "127.0.0.1") -> None:
        super().__init__(port, address)
        self.max_size = 1 << 28
        self.max_alias = 0
        self.connack = Answer(packets.CONNACK)
        """The CONNACK of `connect`."""

    def parse(self, first: int, body: bytes) -> Packet:  # type: ignore[override]
        """A packet of the server that this client allowed."""
        size = 1 + len(packets.remaining_length(len(body))) + len(body)
        if size > self.max_size:
            raise ServerViolationError(f"{size} bytes, where {self.max_size} are allowed")
        found = mqtt5_packets.parse(first, body)
        if isinstance(found, Publish) and found.get(TOPIC_ALIAS) is not None:
            alias = found.get(TOPIC_ALIAS)
            if not isinstance(alias, int) or alias > self.max_alias:
                raise ServerViolationError(f"alias {alias}, where {self.max_alias} are allowed")
        return found

    # ----------------------------------------------------------- receiving

    def expect_kind(self, kind: int) -> Answer:
        """The next packet must be of this kind; returns it."""
        name, found = mqtt5_packets.NAMES[kind], self.receive()
        assert isinstance(found, Answer), f"expected {name}, received {found}"
        assert found.kind == kind, f"expected {name}, received {found}"
        return found

    def expect_answer(
        self, kind: int, packet_id: int = 0, code: int = 0, codes: Iterable[int] = ()
    ) -> Answer:
        """The next packet must be this one, whatever its properties; returns it."""
        found, wanted = self.expect_kind(kind), (packet_id, code, tuple(codes))
        assert (found.packet_id, found.code, found.codes) == wanted, f"{wanted}, received {found}"
        return found

    def expect_message(
        self,
        topic: str,
        payload: bytes,
        qos: int = 0,
        *,
        dup: bool = False,
        retain: bool = False,
        properties: Properties | None = (),
    ) -> Publish:
        """The next packet must be this PUBLISH, with any packet identifier; returns it.

        `properties` None: whatever they are.
        """
        found = self.receive()
        assert isinstance(found, Publish), f"expected {topic} {payload!r}, received {found}"
        wanted = Publish(
            topic,
            payload,
            qos,
            found.packet_id,
            dup,
            retain,
            found.properties if properties is None else properties,
        )
        assert found == wanted, f"expected {wanted}, received {found}"
        return found

    def expect_ended(self, *codes: int) -> Answer:
        """The server must send DISCONNECT with one of the codes, only that, and close."""
        return self._expect_last(packets.DISCONNECT, codes)

    def expect_refused(self, *codes: int) -> Answer:
        """The server must send CONNACK with one of the codes, and close."""
        found = self._expect_last(packets.CONNACK, codes)
        assert not found.session_present
        return found

    def expect_end_of(self, kind: int, *codes: int) -> None:
        """The server must close, with a CONNACK or DISCONNECT of one of the codes or without."""
        with contextlib.suppress(ConnectionClosedError):
            self._expect_last(kind, codes)

    def _expect_last(self, kind: int, codes: tuple[int, ...]) -> Answer:
        found = self.expect_kind(kind)
        assert found.code in codes, f"expected 0x{codes[0]:02X}, received {found}"
        self.expect_closed()
        return found

    def read_to_end(self) -> bytes:
        """All bytes until the server closes the connection."""
        self.socket.settimeout(TIMEOUT)
        data = b""
        while more := self.socket.recv(65_536):
            data += more
        return data

    # ------------------------------------------------------------ dialogues

    def connect(  # type: ignore[override]
        self,
        client_id: str = "",
        *,
        clean: bool = True,
        keepalive: int = 0,
        will: Will | None = None,
        username: str | None = None,
        password: bytes | None = None,
        properties: Properties = (),
    ) -> Answer:
        """Sends CONNECT and returns the CONNACK, whatever its code."""
        self.client_id = client_id
        for identifier, value in properties:
            if identifier == MAXIMUM_PACKET_SIZE and isinstance(value, int):
                self.max_size = value
            if identifier == TOPIC_ALIAS_MAXIMUM and isinstance(value, int):
                self.max_alias = value
        self.send(
            mqtt5_packets.connect(
                client_id,
                clean=clean,
                keepalive=keepalive,
                will=will,
                username=username,
                password=password,
                properties=properties,
            )
        )
        self.connack = self.expect_kind(packets.CONNACK)
        return self.connack

    def subscribe(  # type: ignore[override]
        self,
        *filters: tuple[str, int],
        properties: Properties = (),
        packet_id: int | None = None,
    ) -> tuple[int, ...]:
        """Subscribes and returns the codes of the SUBACK, which must be the next packet."""
        packet_id = packet_id or self.next_id()
        self.send(mqtt5_packets.subscribe(packet_id, *filters, properties=properties))
        return self._expect_codes(SUBACK, packet_id, len(filters))

    def unsubscribe(self, *filters: str) -> tuple[int, ...]:  # type: ignore[override]
        """Unsubscribes and returns the codes of the UNSUBACK, which must be the next packet."""
        packet_id = self.next_id()
        self.send(mqtt5_packets.unsubscribe(packet_id, *filters))
        return self._expect_codes(UNSUBACK, packet_id, len(filters))

    def _expect_codes(self, kind: int, packet_id: int, count: int) -> tuple[int, ...]:
        found = self.expect_kind(kind)
        assert (found.packet_id, len(found.codes)) == (packet_id, count), f"{found}"
        return found.codes

    def publish(  # type: ignore[override]
        self,
        topic: str,
        payload: bytes = b"",
        qos: int = 0,
        *,
        packet_id: int | None = None,
        dup: bool = False,
        retain: bool = False,
        properties: Properties = (),
    ) -> None:
        """Publishes and plays the whole acknowledgement dialogue of `qos`."""
        number = (packet_id or self.next_id()) if qos else None
        flags = {"dup": dup, "retain": retain}
        self.send(
            mqtt5_packets.publish(topic, payload, qos, number, properties=properties, **flags)
        )
        if number is not None and qos == 1:
            self.expect_answer(PUBACK, number)
        elif number is not None:
            self.expect_answer(PUBREC, number)
            self.release(number)

    def release(self, packet_id: int) -> None:
        """Sends PUBREL; the PUBCOMP must be the next packet."""
        self.send(mqtt5_packets.acknowledge(PUBREL, packet_id))
        self.expect_answer(PUBCOMP, packet_id)

    def acknowledge(self, message: Publish) -> None:  # type: ignore[override]
        """Plays the receiver's part for a message just received, up to its end."""
        if message.packet_id is None:
            return
        if message.qos == 1:
            self.send(mqtt5_packets.acknowledge(PUBACK, message.packet_id))
        else:
            self.send(mqtt5_packets.acknowledge(PUBREC, message.packet_id))
            self.expect_answer(PUBREL, message.packet_id)
            self.send(mqtt5_packets.acknowledge(PUBCOMP, message.packet_id))

    def leave(self, code: int | None = None, properties: Properties | None = None) -> None:
        """Sends DISCONNECT, waits until the server has closed too, and closes."""
        self.send(mqtt5_packets.disconnect(code, properties))
        self.expect_closed()
        self.close()


class Clients5(Clients):
    """Makes clients of levels 3, 4 and 5 of one broker and closes them when the test ends."""

    def raw5(self) -> RawClient5:
        """A TCP connection on which nothing was sent yet."""
        client = RawClient5(self.port, self.address)
        self._open.append(client)
        return client

    def five(
        self,
        client_id: str | None = None,
        *,
        clean: bool = True,
        keepalive: int = 0,
        will: Will | None = None,
        session_present: bool = False,
        username: str | None = None,
        password: bytes | None = None,
        properties: Properties = (),
    ) -> RawClient5:
        """A connected client of level 5, by default with a new client identifier.

        The CONNACK must be of code 0 and show `session_present`.
        """
        client = self.raw5()
        found = client.connect(
            unique("c") if client_id is None else client_id,
            clean=clean,
            keepalive=keepalive,
            will=will,
            username=username,
            password=password,
            properties=properties,
        )
        assert (found.code, found.session_present) == (0, session_present), f"{found}"
        return client

    def kept(
        self, client_id: str, topic_filter: str, qos: int, *, properties: Properties = ()
    ) -> RawClient5:
        """A connected client of a session that stays, with one subscription."""
        stays = (SESSION_EXPIRY, 1000)
        client = self.five(client_id, properties=(stays, *properties))
        assert client.subscribe((topic_filter, qos)) == (qos,)
        return client

    def resumed(self, client_id: str, properties: Properties = ()) -> RawClient5:
        """A client that continues its session."""
        return self.five(client_id, clean=False, session_present=True, properties=properties)

    def listening(
        self,
        topic_filter: str,
        options: int = 0,
        *,
        subscription: Properties = (),
        properties: Properties = (),
    ) -> RawClient5:
        """A connected client of level 5 with one subscription."""
        client = self.five(properties=properties)
        assert client.subscribe((topic_filter, options), properties=subscription) == (options & 3,)
        return client


OwnBroker: TypeAlias = Callable[..., tuple[Broker, Clients5]]
"""Starts a broker of the test's own with a configuration; also returns its clients."""

__all__ = ["Clients5", "ConnectionClosedError", "OwnBroker", "RawClient5"]
