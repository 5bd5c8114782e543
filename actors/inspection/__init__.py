"""The inspector: what can be asked of a running broker, and what can be done to it."""
