"""Keeps Sparkplug birth certificates as retained messages: see ``protocol.mqtt.sparkplug``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.session.publisher import Publisher
from protocol.mqtt.packets import Publishes
from protocol.mqtt.sparkplug import certificate_topic

if TYPE_CHECKING:
    from actors.session.node_context import NodeContext
    from actors.session.session_messages import Publication

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
