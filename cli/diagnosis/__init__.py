"""``foldmq status`` and ``foldmq doctor``: the health of a broker, and remedies for problems."""
