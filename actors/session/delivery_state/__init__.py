"""State of the delivery to a client that is kept only in memory, not in the fold of its session."""

from actors.session.delivery_state.first_transmissions import FirstTransmissions
from actors.session.delivery_state.message_buffer import MessageBuffer
from actors.session.delivery_state.queue_expiry import QueueExpiry

__all__ = ["FirstTransmissions", "MessageBuffer", "QueueExpiry"]
