"""The exchange of messages with NATS clients."""
