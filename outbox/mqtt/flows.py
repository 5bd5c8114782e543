"""What happens on the two connections of a bridge, without I/O.

``PeerFlow`` is about the connection to the other broker: messages out, and messages in, which it
gives to the ``LocalFlow`` of the connection to this broker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from outbox.mqtt.outbound import Outbound
from outbox.mqtt.relay import Relay
from protocol.mqtt.packets import PacketType
from protocol.mqtt.reason_codes import FAILURE
from protocol.mqtt.server_packet_decoder import SentMessage

_log = structlog.get_logger("foldmq")


class Flow:
    """What happens on a connection; all errors are FoldmqErrors, and end it."""

    def acknowledged(
        self, kind: PacketType, packet_ids: Sequence[int], reasons: Sequence[int] = ()
    ) -> None:
        """Handle PUBACK, PUBREC, PUBREL or PUBCOMP packets; no reasons: all are 0."""
        raise NotImplementedError

    def published(self, message: SentMessage) -> None:
        """Ignore a message: nothing is subscribed to."""

    def granted(self, codes: bytes) -> None:
        """Ignore a SUBACK."""

    def packets(self) -> bytes:
        """Return the next packets to be sent, some at a time; empty: there are none now."""
        return b""

    def disconnected(self) -> None:
        """Handle the end of a connection that began."""


class PeerFlow(Flow):
    """The connection to the other broker."""

    def __init__(self, name: str, outbound: Outbound, relay: Relay | None) -> None:
        self.unexpected = 0
        """Messages although nothing is subscribed to."""
        self._name = name
        self._outbound = outbound
        self._relay = relay
        self._to_peer: Callable[[bytes], None] | None = None
        self._to_local: Callable[[bytes], None] | None = None
        self._early: list[tuple[bytes, bytes]] = []
        """What is to be sent to this broker and to the other one when both are connected."""

    def attach(self, to_local: Callable[[bytes], None], to_peer: Callable[[bytes], None]) -> None:
        """Begin to pass messages in on."""
        self._to_local, self._to_peer = to_local, to_peer
        early, self._early = self._early, []
        for local, peer in early:
            self._pass_on(local, peer)

    def acknowledged(
        self, kind: PacketType, packet_ids: Sequence[int], reasons: Sequence[int] = ()
    ) -> None:
        """Handle acknowledgements of messages out, and releases of messages in."""
        if kind is not PacketType.PUBREL:
            self._outbound.acknowledged(kind, packet_ids, reasons)
        elif self._relay is not None:
            self._pass_on(self._relay.released(packet_ids), b"")

    def published(self, message: SentMessage) -> None:
        """Handle a message in."""
        if self._relay is not None:
            self._pass_on(*self._relay.published(message))
            return
        self.unexpected += 1
        if self.unexpected == 1:
            _log.warning("the other broker sends messages", to=self._name)

    def granted(self, codes: bytes) -> None:
        """Handle the answer to the subscriptions."""
        refused = sum(code >= FAILURE for code in codes)
        if refused:
            _log.warning(
                "the other broker refuses subscriptions", connection=self._name, refused=refused
            )

    def packets(self) -> bytes:
        """Return the next messages out."""
        return self._outbound.packets()

    def disconnected(self) -> None:
        """End the connection."""
        self._outbound.disconnected()

    def _pass_on(self, local: bytes, peer: bytes) -> None:
        if self._to_local is None or self._to_peer is None:
            self._early.append((local, peer))
            return
        if local:
            self._to_local(local)
        if peer:
            self._to_peer(peer)


class LocalFlow(Flow):
    """The connection to this broker, as a client that publishes."""

    def __init__(self, relay: Relay, to_peer: Callable[[bytes], None]) -> None:
        self._relay = relay
        self._to_peer = to_peer

    def acknowledged(
        self, kind: PacketType, packet_ids: Sequence[int], reasons: Sequence[int] = ()
    ) -> None:
        """Pass an acknowledgement on; raises LocalBusyError."""
        self._to_peer(self._relay.answered(kind, packet_ids, reasons))
