"""Clients of a running broker: its inspector and its live traces, over NATS."""
