"""What would happen now to a message of QoS 1 or 2 that matches a subscription.

The rules are those of :func:`actors.session.decisions.queueing.deliver`, for one message whose size
is not known; nothing is decided and nothing changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from actors.session.decisions.acknowledgements import PACKET_IDS
from actors.session.decisions.queueing import goes_behind, room
from projections.state import SubscriptionState

if TYPE_CHECKING:
    from actors.session.decisions.queueing import DeliveryLimits
    from projections.state import SessionState


class DeliveryPreview(NamedTuple):
    """What would become of a message, and why it would not be sent at once."""

    outcome: Literal["sent", "queued", "dropped"]
    reason: str = ""
    """``window``, ``receive_maximum``, ``packet_ids``, ``older``, or the hindrance."""
    queue: str = ""
    """The limit that a dropped message would exceed: ``queue_messages`` or ``queue_bytes``."""


def preview_delivery(
    state: SessionState, topic_filter: str, qos: int, limits: DeliveryLimits, hindrance: str
) -> DeliveryPreview:
    """Return what would happen to a message of QoS 1 or 2.

    ``hindrance`` says why nothing can be sent to the client at all; empty: something can.
    """
    reason = hindrance or _why_not_sent(state, topic_filter, qos, limits)
    if not reason:
        return DeliveryPreview("sent")
    queue = full_queue(state, limits)
    return DeliveryPreview("dropped", reason, queue) if queue else DeliveryPreview("queued", reason)


def _why_not_sent(state: SessionState, topic_filter: str, qos: int, limits: DeliveryLimits) -> str:
    held = state.subscriptions.get(topic_filter) or SubscriptionState(topic_filter, qos)
    if room(state, held, limits.window) <= 0:
        if held.outstanding >= limits.window:
            return "window"
        return "receive_maximum" if state.receive_maximum < PACKET_IDS else "packet_ids"
    return "older" if goes_behind(state, topic_filter) is not None else ""


def full_queue(state: SessionState, limits: DeliveryLimits) -> str:
    """Return which limit of a session's queue is reached, or an empty text."""
    if state.queued >= limits.queued_messages:
        return "queue_messages"
    return "queue_bytes" if state.queued_bytes >= limits.queued_bytes else ""
