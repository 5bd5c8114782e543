"""The options of a subscription (section 3.8.3.1): the bits beside the QoS in a SUBSCRIBE.

They are stored with the subscription. ``actors.routing.option_semantics`` applies them, and
``projections.audit.subscription_option_checks`` checks that they are obeyed.
"""

from typing import Final

from protocol.mqtt.property_codec import malformed, violation
from protocol.mqtt.shared_filters import SHARE

NO_LOCAL: Final = 0x04
"""The client's own messages are not sent to it."""
RETAIN_AS_PUBLISHED: Final = 0x08
"""RETAIN is sent as the publisher set it."""
RETAIN_HANDLING: Final = 0x30
"""Retained messages are sent always (0), for a new subscription (0x10), never (0x20)."""

QOS_BITS: Final = 0x03
_RESERVED_BITS: Final = 0xC0

LEGAL_OPTIONS = frozenset(
    options
    for options in range(0x40)
    if options & QOS_BITS < 3 and options & RETAIN_HANDLING < RETAIN_HANDLING
)
"""The options that a subscription may have that is not shared, including the QoS."""


def check_subscription_options(topic_filter: str, options: int) -> None:
    """Raise ``ProtocolError`` for options that are not allowed, including the QoS."""
    if options & _RESERVED_BITS:
        raise malformed(
            f"SUBSCRIBE: reserved bits are set in options 0x{options:02x}", "MQTT-3.8.3-5"
        )
    if options & QOS_BITS == 3:
        raise violation("SUBSCRIBE: maximum QoS is 3")
    if options & RETAIN_HANDLING == RETAIN_HANDLING:
        raise violation("SUBSCRIBE: Retain Handling is 3")
    if options & NO_LOCAL and topic_filter.startswith(SHARE):
        raise violation("SUBSCRIBE: No Local on a shared subscription", "MQTT-3.8.3-4")
