"""The exchange of messages with NATS clients: see ``DESIGN.md`` beside this file."""
