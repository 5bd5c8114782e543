"""Counters of the bridge."""

from dataclasses import dataclass

from eventstore.metric_types import counted


@dataclass(slots=True)
class BridgeStats:
    """Counters since the start, and whether the bridge is connected."""

    connected: bool = counted(
        "foldmq_bridge_connected",
        "1 while the bridge is connected to NATS. The metrics of the bridge exist only while it "
        "is enabled.",
        "bridge.connected",
        kind="gauge",
        start=bool,
        read=int,
    )
    sent: int = counted(
        "foldmq_bridge_sent_messages_total", "Messages sent to NATS.", "bridge.sent"
    )
    offered: int = counted(
        "foldmq_bridge_offered_messages_total",
        "Messages that could be sent to NATS, with or without a subscriber there.",
        "bridge.offered",
    )
    received: int = counted(
        "foldmq_bridge_received_messages_total",
        "Messages from NATS with a valid topic.",
        "bridge.received",
    )
    erased: int = 0
    """Messages that were erased before they were sent."""
    probes: int = 0
    """Messages sent as requests, to find out whether there is a subscriber."""
    acknowledged: int = 0
    """Messages from NATS acknowledged to their sender."""
    dropped_properties: int = counted(
        "foldmq_bridge_dropped_properties_total",
        "Properties of messages, and headers from NATS, that were left out because the other side "
        "cannot carry them.",
        "bridge.dropped_properties",
    )
