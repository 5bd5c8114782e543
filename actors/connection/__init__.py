"""Connections: listeners, admission, the CONNECT handshake, input and keep alive."""
