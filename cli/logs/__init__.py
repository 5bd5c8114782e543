"""The logs that a command reads, and the running brokers that it asks."""
