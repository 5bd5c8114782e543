"""``foldmq verify``: the state of a broker compared with its log."""
