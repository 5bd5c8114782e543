"""``foldmq serve``: builds the broker from its settings and runs it."""
