"""The protocol between the runner of a destination and its sink.

The runner decides which messages are due, in which order, when they are tried again, and when the
cursor moves. A sink only sends batches and reports their outcome.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from eventstore.format.positions import Position


class OutboxMessage(NamedTuple):
    """A message that is due to a destination."""

    at: Position
    """Position at which it takes effect: cursors are compared with it."""
    position: Position
    """Position of the message, its identity. It differs from ``at`` only at QoS 2, where a message
    takes effect with its release."""
    number: int
    """Number of the message among those due since the destination was opened, from 1."""
    time_ms: int
    """Time of the record in which it takes effect, Unix time in milliseconds."""
    topic: str
    payload: bytes
    qos: int
    retain: bool
    client: str
    """Client identifier of the publisher."""
    block: bytes = b""
    """Its properties of MQTT 5, for ``protocol.mqtt.message_properties``."""
    expires: int = 0
    """Unix time in seconds at which it expires, on the clock of the log; 0: never."""
    key: int = 0
    """Number of the key that its content is sealed under in the log; 0: it is not sealed."""

    @property
    def size(self) -> int:
        """Approximate size in bytes."""
        return len(self.topic) + len(self.payload) + len(self.block)


@dataclass(frozen=True, slots=True)
class Destination:
    """What a sink needs to know of its destination when it is opened."""

    name: str
    log: str
    """Name of the log, which is the name of its node."""
    run: Position
    """Position of the event that opened the destination."""
    through: Position
    """The cursor: every message due up to here is stored."""
    received: Position
    """A receiver at QoS 2 has the messages up to here; 0: none has a session in this run."""
    number: int
    """Number of messages that were due up to ``through``."""
    record_received: Callable[[Position], Awaitable[None]]
    """Records a position up to which a receiver has the messages at QoS 2, in PUBREC; returns when
    that is on disk, so that their PUBREL may be sent. It may be lower than before: a receiver that
    lost its session has them no longer."""


class Sink(Protocol):
    """Sends messages to one destination."""

    async def open(self, about: Destination) -> None:
        """Prepare to send from the cursor on; raises TryAgain."""

    async def send(self, batch: Sequence[OutboxMessage]) -> None:
        """Return when every message of the batch is stored; called for one batch at a time.

        Raises TryAgain if the batch is to be sent again, RefusedMessages if some of its messages
        can never be stored; then all others must be sent again, in the same order.
        """

    async def close(self) -> None:
        """Close connections."""


class TryAgain(Exception):  # noqa: N818 - it is an answer, not an error
    """The destination cannot store messages now."""

    def __init__(self, reason: str, after: float | None = None, *, misconfigured: bool = False):
        """Try again after some seconds, if given; otherwise the back-off decides.

        ``misconfigured``: the settings are wrong, not the messages, and an operator must act.
        """
        super().__init__(reason)
        self.reason = reason
        self.after = after
        self.misconfigured = misconfigured


class RefusedMessages(Exception):  # noqa: N818 - it is an answer, not an error
    """The destination refused messages for good."""

    def __init__(self, reason: str, code: int = 0, at: Sequence[Position] = ()):
        """Name the refused messages by ``OutboxMessage.at``; none: at least one of the batch is."""
        super().__init__(reason)
        self.reason = reason
        self.code = code
        self.at = frozenset(at)
