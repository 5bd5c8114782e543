"""What the delivery to a client keeps in memory besides the folded state of its session."""

from actors.session.delivery_state.first_transmissions import FirstTransmissions
from actors.session.delivery_state.message_buffer import MessageBuffer
from actors.session.delivery_state.queue_expiry import QueueExpiry

__all__ = ["FirstTransmissions", "MessageBuffer", "QueueExpiry"]
