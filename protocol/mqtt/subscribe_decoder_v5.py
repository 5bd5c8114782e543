"""The decoder of SUBSCRIBE (section 3.8), with options, and UNSUBSCRIBE (3.10) in MQTT 5."""

import sys
from typing import cast

from protocol.mqtt.field_reader import FieldReader
from protocol.mqtt.packets import PacketType, Subscribe, Unsubscribe
from protocol.mqtt.property_codec import violation
from protocol.mqtt.property_table import SUBSCRIPTION_IDENTIFIER
from protocol.mqtt.shared_filters import SHARE
from protocol.mqtt.subscription_options import (
    LEGAL_OPTIONS,
    QOS_BITS,
    check_subscription_options,
)
from protocol.mqtt.topics import TopicError, validate_topic_filter

_NAMES = {kind: kind.name for kind in (PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE)}


class SubscriptionReader:
    """Reads a SUBSCRIBE or UNSUBSCRIBE, some topic filters at a time.

    Raises ``ProtocolError`` when it reaches an error.
    """

    __slots__ = (
        "_fields",
        "_kind",
        "_options",
        "_user",
        "found",
        "identifier",
        "names",
        "packet_id",
    )

    def __init__(self, body: bytes, kind: PacketType) -> None:
        self._kind = kind
        fields = self._fields = FieldReader(body, _NAMES[kind])
        self.packet_id = fields.packet_id()
        values, self._user = fields.properties(kind)
        self.identifier = cast("int", values.get(SUBSCRIPTION_IDENTIFIER, 0)) if values else 0
        """Subscription Identifier; 0: none."""
        self.found: list[tuple[str, int]] = []
        """Topic filters of a SUBSCRIBE, with the requested QoS."""
        self.names: list[str] = []
        """Topic filters of an UNSUBSCRIBE."""
        self._options: list[int] = []
        if fields.at_end():
            subscribing = kind is PacketType.SUBSCRIBE
            statement = "MQTT-3.8.3-2" if subscribing else "MQTT-3.10.2-2"
            raise violation(f"{kind.name} without a topic filter", statement)

    @property
    def count(self) -> int:
        """The number of filters that have been read."""
        return len(self.found) + len(self.names)

    def read(self, most: int = sys.maxsize) -> bool:
        """Read at most ``most`` filters; return whether all filters have been read."""
        fields, stop = self._fields, self.count + most
        while not fields.at_end() and self.count < stop:
            self._read_plain(stop)
            if fields.at_end() or self.count >= stop:
                break
            # The next filter is invalid, or shared.
            if self._kind is PacketType.UNSUBSCRIBE:
                self.names.append(fields.topic_filter("MQTT-3.10.2-1"))
                continue
            topic_filter = fields.topic_filter("MQTT-3.8.3-1")
            options = fields.byte("subscription options")
            check_subscription_options(topic_filter, options)
            self.found.append((topic_filter, options & QOS_BITS))
            self._options.append(options & ~QOS_BITS)
        return fields.at_end()

    def packet(self) -> Subscribe | Unsubscribe:
        """Return the packet; call this when all of its filters have been read."""
        if self._kind is PacketType.SUBSCRIBE:
            return Subscribe(self.packet_id, self.found, self._options, self.identifier, self._user)
        return Unsubscribe(self.packet_id, self.names, self._user)

    def _read_plain(self, most: int) -> None:
        """Read valid filters on a fast path for packets with thousands of them."""
        fields, found, names = self._fields, self.found, self.names
        subscribing = self._kind is PacketType.SUBSCRIBE
        body, at, options = fields.body, fields.at, 0
        size = len(body)
        last = size - subscribing
        try:
            while at < size and len(found) + len(names) < most:
                start = at + 2
                stop = start + (body[at] << 8 | body[at + 1])
                text = body[start:stop].decode()
                if stop > last or start == stop or "\0" in text or text.startswith(SHARE):
                    break
                if "+" in text or "#" in text:
                    validate_topic_filter(text)
                if subscribing:
                    options = body[stop]
                    if options not in LEGAL_OPTIONS:
                        break
                    self._options.append(options & ~QOS_BITS)
                    found.append((text, options & QOS_BITS))
                else:
                    names.append(text)
                at = stop + subscribing
        except (IndexError, UnicodeDecodeError, TopicError):
            pass
        fields.at = at
