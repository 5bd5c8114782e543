"""Reads the properties of messages from NATS: their headers and reply subjects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.bridge.dropped_properties import FROM_NATS
from protocol.nats.property_headers import NO_PROPERTIES, ReadProperties, read_properties

if TYPE_CHECKING:
    from actors.bridge.dropped_properties import PropertyLosses
    from protocol.nats.headers import Headers


class PropertyReader:
    """Reads the properties of messages from NATS."""

    def __init__(self, losses: PropertyLosses) -> None:
        self._losses = losses

    def read(
        self,
        headers: Headers | None,
        payload: bytes,
        topic: str,
        correlation: bytes | None = None,
        *,
        copied: bool = False,
    ) -> ReadProperties:
        """Return the properties of a message on a topic.

        ``correlation`` is the Correlation Data of the request that the message answers; it applies
        if the message has none. ``copied``: a NATS client copied the headers from a message of this
        broker, as ``respond()`` of nats-py does: their Response Topic does not apply to this
        message.
        """
        found = read_properties(headers, payload) if headers is not None else NO_PROPERTIES
        self._losses.add(FROM_NATS, found.dropped)
        properties = found.properties
        if copied or properties.response_topic == topic:
            properties = properties._replace(response_topic=None)
        if correlation is not None and properties.correlation is None:
            properties = properties._replace(correlation=correlation)
        return ReadProperties(properties)
