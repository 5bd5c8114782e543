"""The fast path: packets of all connections, decided as columns in one pass of a turn."""
