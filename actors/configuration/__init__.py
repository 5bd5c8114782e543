"""The validated options of the broker, its limits and its bridge."""

from actors.configuration.bridge_options import REPLIES, REQUESTS, BridgeOptions
from actors.configuration.broker_options import BrokerOptions
from actors.configuration.limit_options import NO_QUOTA, LimitOptions, Quota

__all__ = [
    "NO_QUOTA",
    "REPLIES",
    "REQUESTS",
    "BridgeOptions",
    "BrokerOptions",
    "LimitOptions",
    "Quota",
]
