"""The embedded NATS server: its process, its ports, and the users of its clients."""
