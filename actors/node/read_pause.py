"""Reasons to pause reading from a client."""

from typing import Final


class ReadPause:
    """Reasons why a connection is paused: bits of a number, which is checked for every read."""

    CONNECT: Final = 1 << 0
    """The client sent too much before its CONNECT was answered."""
    LOG: Final = 1 << 1
    """The log is congested."""
    SLOW_READER: Final = 1 << 2
    """The client publishes to a client that does not keep up."""
    LOADING: Final = 1 << 3
    """The session waits for messages from the log."""
    DRAIN: Final = 1 << 4
    """The broker is shutting down."""
    NATS: Final = 1 << 5
    """The client publishes faster than the bridge can send to NATS."""
    RATE: Final = 1 << 6
    """The client exceeds its publish rate."""
    TURN: Final = 1 << 7
    """The input is handled in parts, and other clients have priority."""
    WORK: Final = 1 << 8
    """The handling of earlier input takes more than one turn and continues."""
    BACKLOG: Final = 1 << 9
    """The client publishes faster than its receivers read."""

    @classmethod
    def names(cls, reasons: int) -> list[str]:
        """Return the names of reasons, in lower case."""
        return [name.lower() for name, bit in vars(cls).items() if name.isupper() and bit & reasons]
