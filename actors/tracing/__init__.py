"""Live traces: the messages, output and events of actors."""
