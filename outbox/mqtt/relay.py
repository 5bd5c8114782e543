"""Messages of another broker on their way into this one, without I/O and without state.

Packets pass with their packet identifiers: a PUBLISH of the other broker becomes a PUBLISH of a
client of this broker, and the acknowledgement of this broker, which is on disk, becomes that to the
other one. What has to survive at QoS 2 are the identifiers of the local session, which are in the
log. After a kill at any point both sessions resume.

A message that this broker will never take is acknowledged all the same, or it would come again with
each connection. At QoS 2 its PUBREL is then passed on as well: this broker answers it with PUBCOMP,
whether it knows the identifier or not.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from outbox.mqtt.topic_lines import TopicMap
from protocol.errors import FoldmqError
from protocol.mqtt.client_packet_encoder import encode_publish
from protocol.mqtt.encoder import encode_acks
from protocol.mqtt.loop_path import is_readable, with_logs, would_loop
from protocol.mqtt.packets import PacketType
from protocol.mqtt.reason_codes import ReasonCode
from protocol.mqtt.server_packet_decoder import SentMessage

_FIRST_ANSWER: Final = {1: PacketType.PUBACK, 2: PacketType.PUBREC}
_PASSED_ON: Final = frozenset({PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBCOMP})


class LocalBusyError(FoldmqError):
    """The local broker has no room for a message now: it comes again with the next connection."""


class Relay:
    """Passes packets between two connections; each method returns the bytes for one of them."""

    def __init__(self, topics: TopicMap, log: str, logs: Iterable[str] = ()) -> None:
        """Take messages into ``log``; ``logs`` are all logs of this broker."""
        self._topics = topics
        self._log = log
        self._logs = frozenset({log, *logs})
        self._most = 0
        self._peer_log: tuple[str, ...] = ()
        self.begun = False
        """Whether there was a connection before."""

    def begin(self, maximum_packet_size: int, peer_log: str = "") -> None:
        """Begin a connection to this broker, with its largest packet in bytes; 0: no limit.

        ``peer_log`` is the log of the other broker; empty: it is no foldmq.
        """
        self._most = maximum_packet_size
        self._peer_log = (peer_log,) if peer_log else ()
        self.begun = True

    def published(self, message: SentMessage) -> tuple[bytes, bytes]:
        """Handle a PUBLISH of the other broker; return bytes for this broker, and for the other."""
        publish = message.publish
        topic = self._topics.incoming(publish.topic.decode())
        if topic is None or would_loop(publish.block, *self._logs):
            return b"", self._answer(publish.qos, publish.packet_id)
        block = with_logs(publish.block, *self._peer_log, self._log)
        packet = encode_publish(
            topic.encode(),
            publish.payload,
            publish.qos,
            publish.packet_id,
            retain=publish.retain,
            dup=publish.dup,
            block=block,
        )
        if 0 < self._most < len(packet) or not is_readable(block):
            return b"", self._answer(publish.qos, publish.packet_id)
        return packet, b""

    def released(self, packet_ids: Sequence[int]) -> bytes:
        """Handle PUBREL packets of the other broker; return the bytes for this broker."""
        return encode_acks(PacketType.PUBREL, packet_ids)

    def answered(
        self, kind: PacketType, packet_ids: Sequence[int], reasons: Sequence[int] = ()
    ) -> bytes:
        """Handle acknowledgements of this broker; return the bytes for the other one.

        Raises LocalBusyError: both connections then have to be closed.
        """
        if kind not in _PASSED_ON:
            return b""
        if kind is not PacketType.PUBCOMP and ReasonCode.QUOTA_EXCEEDED in reasons:
            raise LocalBusyError("this broker has no room for more messages (0x97)")
        return encode_acks(kind, packet_ids)

    def _answer(self, qos: int, packet_id: int) -> bytes:
        return encode_acks(_FIRST_ANSWER[qos], [packet_id]) if qos else b""
