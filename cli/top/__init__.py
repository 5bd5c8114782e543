"""``foldmq top``: monitors a running broker, on a terminal or as text."""
