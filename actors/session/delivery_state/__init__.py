"""State of the delivery to a client that is kept only in memory, not in the fold of its session."""
