"""Reasons to pause reading from a client."""

from enum import IntFlag, auto


class ReadPause(IntFlag):
    """Why a connection is paused."""

    CONNECT = auto()
    """The client sent too much before its CONNECT was answered."""
    LOG = auto()
    """The log is congested."""
    SLOW_READER = auto()
    """The client publishes to a client that does not keep up."""
    LOADING = auto()
    """The session waits for messages from the log."""
    DRAIN = auto()
    """The broker ends."""
    NATS = auto()
    """The client publishes faster than the bridge can send to NATS."""
    RATE = auto()
    """The client exceeds its publish rate."""
    TURN = auto()
    """The input is handled in parts, other clients come first."""
    WORK = auto()
    """Earlier input is more work than fits into a turn and continues."""
    BACKLOG = auto()
    """The client publishes faster than its receivers read."""
