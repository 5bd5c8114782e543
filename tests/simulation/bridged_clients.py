"""MQTT clients of brokers with a bridge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness import mqtt5_packets as p5
from harness import packets as p

from eventstore.nats.connection import ConnectionOptions
from simulation.network import SimClient

if TYPE_CHECKING:
    from simulation.world import World

ACCESS = ConnectionOptions(urls=("nats://sim",))


class Client5(SimClient):
    """A client of level 5, which acknowledges what it gets."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.messages: list[p5.Publish] = []
        self.acked: set[int] = set()
        self.kinds: list[int] = []
        """The kinds of the packets that came, in their order."""
        self.granted = 0
        """Subscriptions that were granted."""
        self._rest = bytearray()

    def receive(self, data: bytes) -> None:
        if not self.open:
            return
        self._rest += data
        while (found := p.split(self._rest)) is not None:
            first, body, size = found
            del self._rest[:size]
            packet: Any = p5.parse(first, body)
            self.kinds.append(first >> 4)
            if isinstance(packet, p5.Publish):
                self.messages.append(packet)
                if packet.qos == 1:
                    self.send(p5.acknowledge(p.PUBACK, packet.packet_id or 0))
                elif packet.qos == 2:
                    self.send(p5.acknowledge(p.PUBREC, packet.packet_id or 0))
            elif isinstance(packet, p5.Answer) and packet.kind == p.PUBREL:
                self.send(p5.acknowledge(p.PUBCOMP, packet.packet_id))
            elif isinstance(packet, p5.Answer) and packet.kind == p.SUBACK:
                self.granted += 1
            elif isinstance(packet, p5.Answer) and packet.kind == p.PUBREC:
                self.send(p5.acknowledge(p.PUBREL, packet.packet_id))
            elif isinstance(packet, p5.Answer) and packet.kind in (p.PUBACK, p.PUBCOMP):
                assert packet.code == 0
                self.acked.add(packet.packet_id)
