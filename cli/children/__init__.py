"""The child processes of the broker: their environment, and how they end."""
