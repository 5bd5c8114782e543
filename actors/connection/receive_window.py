"""The broker's Receive Maximum: limits a client's unacknowledged publications."""

from collections.abc import Sequence

from eventstore.log.journal import Journal
from eventstore.log.pending_record import GatedOutput
from protocol.mqtt.packets import PacketType, Publishes
from protocol.mqtt.reason_codes import FAILURE

_SHORTEST = 8
"""Bytes of the shortest PUBLISH at QoS 1 or 2."""


class ReceiveWindow:
    """Counts the unacknowledged QoS 1 and 2 messages of one connection.

    A QoS 1 message counts until its PUBACK has passed the gate: the window is an additional sink
    that gets a byte for each PUBACK. A QoS 2 message counts until its PUBREL. Messages from earlier
    connections of the session do not count.
    """

    __slots__ = ("_exchanges", "_unacknowledged", "gated", "maximum", "waits_for")

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self.waits_for: GatedOutput | None = None
        self.gated = 0
        self._unacknowledged = 0
        """Number of QoS 1 messages."""
        self._exchanges: set[int] | None = None
        """Packet identifiers of QoS 2 messages; None until there are any: most clients send none,
        and an empty set takes 200 bytes."""

    def add(self, packet: Publishes, journal: Journal) -> int:
        """Count received messages; return how many of them are within the window."""
        # Some of the acknowledgements that are being released may have reached the client.
        room = self._room + self.gated if journal.releasing else self._room
        count = len(packet)
        if packet.qos == 1:
            fitting = max(0, min(count, room))
            self._unacknowledged += fitting
            return fitting
        exchanges = self._exchanges
        if exchanges is None:
            exchanges = self._exchanges = set()
        for at, packet_id in enumerate(packet.packet_ids):
            if packet_id not in exchanges:
                if room <= 0:
                    return at
                room -= 1
                exchanges.add(packet_id)
        return count

    def always_fits(self, size: int) -> bool:
        """Return whether ``size`` bytes certainly contain no more messages than permitted."""
        return size // _SHORTEST <= self._room

    def add_counts(self, at_qos1: int, at_qos2: Sequence[int]) -> None:
        """Count received messages: the number at QoS 1, and the packet identifiers at QoS 2."""
        self._unacknowledged += at_qos1
        if at_qos2:
            if self._exchanges is None:
                self._exchanges = set()
            self._exchanges.update(at_qos2)

    def acknowledge(
        self,
        journal: Journal,
        kind: PacketType,
        packet_ids: Sequence[int],
        reasons: Sequence[int] = (),
    ) -> None:
        """Count acknowledgements handed to the gate."""
        if kind is PacketType.PUBACK:
            journal.send_when_durable(self, bytes(len(packet_ids)))
        elif self._exchanges is None:
            return
        elif kind is PacketType.PUBCOMP:
            self._exchanges.difference_update(packet_ids)
        elif kind is PacketType.PUBREC and reasons:
            pairs = zip(packet_ids, reasons, strict=True)
            self._exchanges.difference_update(pid for pid, reason in pairs if reason >= FAILURE)

    def write(self, data: bytes) -> None:
        """Count PUBACK packets that have passed the gate."""
        self._unacknowledged = max(0, self._unacknowledged - len(data))

    @property
    def _room(self) -> int:
        exchanges = 0 if self._exchanges is None else len(self._exchanges)
        return self.maximum - self._unacknowledged - exchanges
