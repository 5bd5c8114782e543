"""Limits on connections, rates, memory and topics; validated options.

Limits on clients: connections, rates, memory, subscriptions and topics.

The validated options of the broker, its limits and its bridge.
"""
