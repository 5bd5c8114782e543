"""Applies the options of subscriptions (section 3.8.3.1) when messages are routed and sent.

- No Local, Retain As Published: ``TopicMatch`` chooses the subscription through which a session
  receives. ``actors.session.publisher`` leaves the publisher out, and
  ``actors.session.delivery`` and ``actors.session`` set the RETAIN flag.
- Retain Handling: ``actors.session.subscription_handler`` sends retained messages.

The fast path leaves topics with a receiver that has No Local to the publisher. Subscription
identifiers are a property of SUBSCRIBE, not an option: see ``actors.session``.
"""

from typing import Final

from actors.routing.subscriber import Subscriber
from protocol.mqtt.shared_filters import SHARE
from protocol.mqtt.subscription_options import NO_LOCAL, RETAIN_AS_PUBLISHED, RETAIN_HANDLING

ROUTED_OPTIONS: Final = NO_LOCAL | RETAIN_AS_PUBLISHED
"""The options that the receivers of a topic depend on."""
_IF_NEW: Final = 0x10


def bridge_options(topic_filter: str) -> int:
    """Return the options of the subscriptions of another broker's bridge, which cannot set any.

    Without No Local its messages would come back; a shared subscription cannot have it
    [MQTT-3.8.3-4].
    """
    return RETAIN_AS_PUBLISHED if topic_filter.startswith(SHARE) else ROUTED_OPTIONS


def is_no_local(options: int) -> bool:
    """Return whether the client does not get its own messages."""
    return options & NO_LOCAL != 0


def is_retain_as_published(options: int) -> bool:
    """Return whether messages keep the RETAIN flag of their publication."""
    return options & RETAIN_AS_PUBLISHED != 0


def sends_retained(options: int, *, is_new: bool) -> bool:
    """Return whether a SUBSCRIBE makes the broker send retained messages [MQTT-3.3.1-9].

    ``is_new``: the session had no subscription with this filter before.
    """
    handling = options & RETAIN_HANDLING
    return not handling or (handling == _IF_NEW and is_new)


def is_preferred(subscriber: Subscriber, other: Subscriber) -> bool:
    """Return whether a session receives through subscription ``subscriber`` rather than ``other``.

    The higher QoS decides; with the same QoS, Retain As Published.
    """
    if subscriber.qos != other.qos:
        return subscriber.qos > other.qos
    return is_retain_as_published(subscriber.options) and not is_retain_as_published(other.options)
