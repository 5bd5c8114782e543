"""The stages between a socket and a connection: PROXY protocol, TLS and WebSocket."""
