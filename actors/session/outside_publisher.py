"""Publications that no client of this log has sent.

They come from NATS or the logs of other brokers of the node, or are copies of Sparkplug birth
certificates: see ``protocol.mqtt.sparkplug``.
"""

from collections.abc import Callable, Sequence

from actors.routing.subscriber import Subscriber
from actors.session.decisions.acknowledgements import PACKET_IDS
from actors.session.node_context import NodeContext
from actors.session.publisher import Publisher
from actors.session.session_messages import NOT_LOGGED, Publication
from eventstore.format.events import Released, SessionClosed, SessionOpened
from eventstore.format.positions import Position, to_runs
from eventstore.log.message_store import StoredMessages
from eventstore.log.pending_record import GatedOutput
from protocol.mqtt.packets import Publishes
from protocol.mqtt.sparkplug import certificate_topic


class GateSink:
    """Passes what the gate releases to a function: a sink that is not a connection."""

    def __init__(self, release: Callable[[bytes], object]) -> None:
        self._release = release
        self.waits_for: GatedOutput | None = None
        self.gated = 0

    def write(self, data: bytes) -> None:
        """Pass bytes on whose events are on disk."""
        self._release(data)


class OutsidePublisher(Publisher):
    """Publishes messages from NATS, or from another log."""

    __slots__ = ()

    def publish_from_nats(
        self, packet: Publishes, accepts: Callable[[Subscriber], bool] | None = None
    ) -> list[tuple[Position, int]]:
        """Publish messages from NATS to the subscribers that ``accepts`` permits.

        Messages of QoS 1 and 2 and retained messages are recorded. Returns their places as
        (position of the first one, count) for each part. QoS 2 takes effect at once.
        """
        if not packet.qos and not packet.retain:
            for part, is_recorded in self._recorded_parts(packet):
                if is_recorded:
                    self._publish_now(part, accepts=accepts)
                    continue
                content, whole = self._unrecorded(part)
                self._route(content, whole, NOT_LOGGED, accepts=accepts)
            return []
        return [
            (self._publish_now(part, accepts=accepts), len(part))
            for part in self._split(self._admit_by_topic(packet))
        ]

    def deliver_from_nats(self, packet: Publishes, is_home: Callable[[bytes], bool]) -> None:
        """Deliver QoS 0 messages from NATS to subscribers of this log.

        The brokers of other logs get the messages from NATS themselves. Observers of topics are
        notified of those on topics of which this log is the home.
        """
        self.route_unrecorded(packet)
        routes = self._node.router.routes
        own = [at for at, raw in enumerate(packet.topics) if routes[raw].observed and is_home(raw)]
        if own:
            content, whole = self._unrecorded(packet.select(own))
            self._notify_topic_observers(Publication(self.name, whole, content))

    def publish_taken(self, packet: Publishes, origins: Sequence[Position], *, live: bool) -> None:
        """Record messages of another log, which take effect at once, and route them if ``live``.

        ``origins`` are their positions there. They fit into a record.
        """
        content = self.record(packet, will=False, origins=to_runs(origins))
        refs = range(content.first, content.first + len(packet))
        if packet.qos == 2:
            self._node.emit(Released(self.name, to_runs(packet.packet_ids), refs=to_runs(refs)))
        if live:
            whole = self._batch(packet.qos, content, refs, packet.retain, gated=not packet.qos)
            self._route(content, whole, (refs[0], refs[-1]), taken=True)

    def record_assigned(
        self, packet: Publishes, origins: Sequence[Position], share: str
    ) -> StoredMessages:
        """Record messages that another log assigned to a shared subscription of this one.

        They are not routed, and are recorded at QoS 0: they are for that subscription alone.
        """
        return self.record(packet, will=False, origins=to_runs(origins), share=share)

    def open(self, level: int, user: str | None = None) -> None:
        """Open the session under which messages are recorded, unless it is open."""
        known = self._node.state.sessions.get(self.name)
        if known is not None and known.connected:
            return
        generation = known.generation + 1 if known is not None else 1
        opened = SessionOpened(self.name, False, True, level, generation=generation, user=user)
        self._node.emit(opened)

    def close(self, reason: str) -> None:
        """Close that session, if it is open."""
        state = self._node.state.sessions.live.get(self.name)
        if state is not None and state.connected:
            self._node.emit(SessionClosed(self.name, reason, state.generation))


def packet_ids_after(previous: int, count: int) -> list[int]:
    """Return packet identifiers for messages that take effect in the turn of their arrival."""
    return [(previous + number) % PACKET_IDS + 1 for number in range(count)]


_SPARKPLUG = "spBv1.0/"
_SPARKPLUG_RAW = _SPARKPLUG.encode()


class BirthCertificates:
    """Publishes a retained copy of each birth certificate, in the name of its publisher.

    An observer of topics. Wills are no births. Copies of messages from another broker are published
    there, and there are none of messages for some users: retained messages are for all.
    """

    def __init__(self, node: NodeContext) -> None:
        self._node = node

    def observes(self, topic: str) -> bool:
        """Return whether birth certificates are published to a topic."""
        return topic.startswith(_SPARKPLUG) and certificate_topic(topic) is not None

    def is_ready(self, topic: bytes) -> bool:
        """Return whether the receivers of a certificate's copy are known, and active if needed.

        Otherwise look for them and activate them.

        That may take several turns: ask again in the next one.
        """
        copy = certificate_topic(topic.decode())
        return copy is None or Publisher(self._node, "").is_routed(copy.encode(), 0)

    def published(self, publication: Publication) -> None:
        """Publish the copies of the certificates among some messages."""
        batch = publication.batch
        if batch.gated or publication.taken or publication.restricted:
            return
        publisher = Publisher(self._node, publication.session)
        publisher.connection = batch.publisher
        for raw, payload in zip(batch.topics, batch.payloads, strict=True):
            copy = certificate_topic(raw.decode()) if raw.startswith(_SPARKPLUG_RAW) else None
            if copy is None:
                continue
            topic = copy.encode()
            by = batch.publisher
            if by is not None and by.access is not None and not by.access.publish[topic]:
                # The copy is retained, so that the drop is recorded.
                self._node.permissions.deny_publish(publication.session, by, [topic], recorded=True)
                continue
            if not publisher.fits(topic, payload):
                self._node.count_dropped("message_too_large", 1, client=publication.session)
                continue
            packet = Publishes(0, retain=True)
            packet.topics.append(topic)
            packet.payloads.append(payload)
            publisher.publish(packet)
