"""Connections: listeners, the CONNECT handshake, input and admission."""
