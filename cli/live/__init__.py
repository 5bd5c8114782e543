"""Clients of a running broker over NATS: its inspector and its live traces."""
