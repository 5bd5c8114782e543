"""Preview of the delivery of a QoS 1 or 2 message that matches a subscription.

The rules are those of :func:`actors.session.decisions.queueing.deliver`, applied to one message. No
state changes.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from actors.session.decisions.acknowledgements import PACKET_IDS
from actors.session.decisions.queueing import DeliveryLimits, goes_behind, room
from projections.state.session import SessionState, SubscriptionState


class DeliveryPreview(NamedTuple):
    """The predicted outcome of a message, and the reason if it is not sent immediately."""

    outcome: Literal["sent", "queued", "dropped"]
    reason: str = ""
    """``window``, ``receive_maximum``, ``packet_ids``, ``older``, or the hindrance."""
    queue: str = ""
    """The limit that drops the message: ``queue_messages`` or ``queue_bytes``."""


def preview_delivery(
    state: SessionState,
    topic_filter: str,
    qos: int,
    limits: DeliveryLimits,
    blocked_by: str,
    size: int | None = None,
) -> DeliveryPreview:
    """Return the predicted outcome of a QoS 1 or 2 message.

    ``size`` is the size of its payload, by default the mean of the waiting ones. ``blocked_by`` is
    the reason why nothing can be sent to the client; empty: there is none.
    """
    reason = blocked_by or _why_not_sent(state, topic_filter, qos, limits)
    if not reason:
        return DeliveryPreview("sent")
    queue = full_queue(state, limits, size)
    return DeliveryPreview("dropped", reason, queue) if queue else DeliveryPreview("queued", reason)


def _why_not_sent(state: SessionState, topic_filter: str, qos: int, limits: DeliveryLimits) -> str:
    subscription = state.subscriptions.get(topic_filter) or SubscriptionState(topic_filter, qos)
    if room(state, subscription, limits.window) <= 0:
        if subscription.outstanding >= limits.window:
            return "window"
        return "receive_maximum" if state.receive_maximum < PACKET_IDS else "packet_ids"
    return "older" if goes_behind(state, topic_filter) is not None else ""


def full_queue(state: SessionState, limits: DeliveryLimits, size: int | None = None) -> str:
    """Return the limit because of which a session's queue rejects a message, or an empty string.

    ``size`` is the size of its payload, by default the mean of the waiting ones.
    """
    if state.queued >= limits.queued_messages:
        return "queue_messages"
    if size is None:
        size = max(1, state.queued_bytes // max(1, state.queued))
    return "queue_bytes" if state.queued_bytes + size > limits.queued_bytes else ""
