"""Publications that come from NATS, or from the logs of other brokers of the node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.session.publisher import Publisher
from actors.session.session_messages import NOT_LOGGED, Publication
from eventstore.format.events import Released
from eventstore.format.positions import to_runs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from actors.routing.subscriber import Subscriber
    from eventstore.format.positions import Position
    from eventstore.log.message_store import StoredMessages
    from protocol.mqtt.packets import Publishes


class OutsidePublisher(Publisher):
    """Publishes messages that no client of this log has sent."""

    __slots__ = ()

    def publish_from_nats(
        self, packet: Publishes, accepts: Callable[[Subscriber], bool] | None = None
    ) -> list[tuple[Position, int]]:
        """Publish messages from NATS to the subscribers that ``accepts`` permits.

        Messages of QoS 1 and 2 and retained messages are recorded. Returns their places as
        (position of the first one, count) for each part. QoS 2 takes effect at once.
        """
        if not packet.qos and not packet.retain:
            content, whole = self._unrecorded(packet)
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
