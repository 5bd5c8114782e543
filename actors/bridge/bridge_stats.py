"""What the bridge counts."""

from __future__ import annotations


class BridgeStats:
    """Counters since the start, and how the bridge is."""

    __slots__ = ("acknowledged", "connected", "offered", "probes", "received", "sent")

    def __init__(self) -> None:
        self.connected = False
        self.sent = 0
        """Messages given to NATS."""
        self.offered = 0
        """Messages that NATS would have been sent if anybody there had wanted them."""
        self.probes = 0
        """Messages that were sent with a question whether anybody wants them."""
        self.received = 0
        """Messages from NATS that have a topic."""
        self.acknowledged = 0
        """Messages from NATS whose sender was told that they are in the log."""
