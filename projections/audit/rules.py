"""The rules of the audit of a session, and the violation of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from eventstore.format import Position

PACKET_ID_REUSE: Final = "packet_id_reuse"
"""A packet identifier was given to a message while another one had it, or is none."""
UNDELIVERED: Final = "undelivered"
"""A message that matched was neither delivered, nor queued, nor dropped with a reason."""
UNEXPECTED: Final = "unexpected_delivery"
"""A message was delivered that matched no subscription, or had been delivered before."""
NO_SUBSCRIPTION: Final = "no_subscription"
"""A delivery names a subscription that there is not, or whose filter does not match; or a retained
message was sent for a filter that was not subscribed to then."""
QOS: Final = "qos"
"""A message was delivered at another QoS than the lower one of its own and the granted one."""
ORDER: Final = "order"
"""Messages of a publisher on one topic were not delivered in the order in which they took effect;
or what was on its way was not sent again first, and in its order."""
QUEUE: Final = "queue"
"""What left the queue was not what stood at its head."""
ACKNOWLEDGEMENT: Final = "acknowledgement"
"""Something was acknowledged, released or sent again that was not on its way."""
SESSION: Final = "session"
"""A session was resumed that there was not or that was clean, thrown away though its client wanted
it kept, or expired while its client was there."""
CHECKPOINT: Final = "checkpoint"
"""A checkpoint repeats a state that is not the one the log tells."""
EVENT: Final = "event"
"""An event does not fit what was before; what follows is not looked at."""

RULES: Final = (
    PACKET_ID_REUSE,
    UNDELIVERED,
    UNEXPECTED,
    NO_SUBSCRIPTION,
    QOS,
    ORDER,
    QUEUE,
    ACKNOWLEDGEMENT,
    SESSION,
    CHECKPOINT,
    EVENT,
)


class Violation(NamedTuple):
    """A promise that was not kept."""

    rule: str
    at: Position
    what: str
    ref: Position | None = None
    """The message that it is about; given for UNEXPECTED."""
