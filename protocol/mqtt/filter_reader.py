"""The decoder of SUBSCRIBE (section 3.8) and UNSUBSCRIBE (3.10)."""

import sys
from typing import cast

from protocol.mqtt.field_reader import FieldReader
from protocol.mqtt.packets import PacketType, Subscribe, Unsubscribe, UserProperties
from protocol.mqtt.property_codec import malformed, violation
from protocol.mqtt.property_table import SUBSCRIPTION_IDENTIFIER
from protocol.mqtt.shared_filters import SHARE
from protocol.mqtt.subscription_options import (
    LEGAL_OPTIONS,
    QOS_BITS,
    check_subscription_options,
)
from protocol.mqtt.topics import TopicError, validate_topic_filter

_QOS = frozenset({0, 1, 2})


class FilterReader:
    """Reads a SUBSCRIBE or UNSUBSCRIBE, some topic filters at a time.

    Raises ``ProtocolError`` when it reaches an error. ``v5``: its client uses MQTT 5.
    """

    __slots__ = (
        "_fields",
        "_options",
        "_subscribing",
        "_user",
        "_v5",
        "filters",
        "identifier",
        "names",
        "packet_id",
    )

    def __init__(self, body: bytes, kind: PacketType, *, v5: bool) -> None:
        self._v5 = v5
        self._subscribing = kind is PacketType.SUBSCRIBE
        fields = self._fields = FieldReader(body, kind.name, v5=v5)
        self.packet_id = fields.packet_id()
        self.identifier = 0
        """Subscription Identifier; 0: none."""
        self._user: UserProperties = ()
        if v5:
            values, self._user = fields.properties(kind)
            self.identifier = cast("int", values.get(SUBSCRIPTION_IDENTIFIER, 0)) if values else 0
        self.filters: list[tuple[str, int]] = []
        """Topic filters of a SUBSCRIBE, with the requested QoS."""
        self.names: list[str] = []
        """Topic filters of an UNSUBSCRIBE."""
        self._options: list[int] = []
        if fields.at_end():
            what = f"{kind.name} without a topic filter"
            if v5:
                raise violation(what, "MQTT-3.8.3-2" if self._subscribing else "MQTT-3.10.2-2")
            raise malformed(what, "MQTT-3.8.3-3" if self._subscribing else "MQTT-3.10.3-2")

    @property
    def count(self) -> int:
        """The number of filters that have been read."""
        return len(self.filters) + len(self.names)

    def read(self, most: int = sys.maxsize) -> bool:
        """Read at most ``most`` filters; return whether all filters have been read."""
        fields, stop = self._fields, self.count + most
        while not fields.at_end() and self.count < stop:
            self._read_plain(stop)
            if fields.at_end() or self.count >= stop:
                break
            # The next filter is invalid, or shared, or only appears to be.
            if not self._v5:
                topic_filter = fields.topic_filter("MQTT-4.8.0-1")
            else:
                topic_filter = fields.topic_filter(
                    "MQTT-3.8.3-1" if self._subscribing else "MQTT-3.10.2-1"
                )
            if not self._subscribing:
                self.names.append(topic_filter)
                continue
            options = fields.byte("subscription options" if self._v5 else "requested QoS")
            if self._v5:
                check_subscription_options(topic_filter, options)
                self._options.append(options & ~QOS_BITS)
            elif options not in _QOS:
                what = f"SUBSCRIBE: requested QoS byte is 0x{options:02x}, not 0, 1 or 2"
                raise malformed(what, "MQTT-3.8.3-4")
            self.filters.append((topic_filter, options & QOS_BITS))
        return fields.at_end()

    def packet(self) -> Subscribe | Unsubscribe:
        """Return the packet; call this when all of its filters have been read."""
        if self._subscribing:
            return Subscribe(
                self.packet_id, self.filters, self._options, self.identifier, self._user
            )
        return Unsubscribe(self.packet_id, self.names, self._user)

    def _read_plain(self, most: int) -> None:
        """Read valid filters on a fast path for packets with thousands of them."""
        fields, filters, names = self._fields, self.filters, self.names
        subscribing, v5 = self._subscribing, self._v5
        legal = LEGAL_OPTIONS if v5 else _QOS
        body, at = fields.body, fields.at
        size = len(body)
        last = size - subscribing
        try:
            while at < size and len(filters) + len(names) < most:
                start = at + 2
                stop = start + (body[at] << 8 | body[at + 1])
                text = body[start:stop].decode()
                if stop > last or start == stop or "\0" in text or (v5 and text.startswith(SHARE)):
                    break
                if "+" in text or "#" in text:
                    validate_topic_filter(text)
                if subscribing:
                    options = body[stop]
                    if options not in legal:
                        break
                    if v5:
                        self._options.append(options & ~QOS_BITS)
                    filters.append((text, options & QOS_BITS))
                else:
                    names.append(text)
                at = stop + subscribing
        except (IndexError, UnicodeDecodeError, TopicError):
            pass
        fields.at = at
