"""Why nothing is read from a client."""

from enum import IntFlag, auto


class ReadPause(IntFlag):
    """Why nothing is read from a connection at present."""

    CONNECT = auto()
    """It sent much before its CONNECT was answered."""
    LOG = auto()
    """More waits for the disk than should."""
    SLOW_READER = auto()
    """It publishes to a client that does not keep up."""
    LOADING = auto()
    """Its session waits for messages from the log."""
    DRAIN = auto()
    """The broker ends."""
    NATS = auto()
    """It publishes more than the bridge can give to NATS."""
    RATE = auto()
    """It publishes faster than it may."""
    TURN = auto()
    """What it sent is taken little by little, others come first."""
    WORK = auto()
    """What it sent before is more work than fits into a turn, and goes on."""
    BACKLOG = auto()
    """It publishes faster than the receivers of its topics take it."""
