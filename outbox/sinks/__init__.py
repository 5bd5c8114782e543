"""Sinks: what the outbox does with the messages of a destination."""
