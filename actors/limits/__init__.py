"""Limits on clients: connections, rates, memory, subscriptions and topics."""

from actors.limits.address_networks import network_of
from actors.limits.client_limits import ClientLimits
from actors.limits.publish_rates import RateLimiter
from actors.limits.rejection_log import RejectionLog
from actors.limits.slow_readers import SlowReader
from actors.limits.subscription_rates import SubscriptionRate

__all__ = [
    "ClientLimits",
    "RateLimiter",
    "RejectionLog",
    "SlowReader",
    "SubscriptionRate",
    "network_of",
]
