"""Connections to a NATS server, and requests over them."""
