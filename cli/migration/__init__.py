"""Moving from other brokers: their settings, sessions and retained messages."""
