"""Limits on clients: connections, rates, memory, subscriptions and topics."""
