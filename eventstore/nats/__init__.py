"""Connections to a NATS server: nats-py's, messages in batches, and requests."""
