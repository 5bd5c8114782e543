"""Limits on what clients take: connections, rates, memory, subscriptions and topics."""
