"""``foldmq serve``: builds the broker from the settings and runs it."""
