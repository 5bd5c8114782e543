"""``foldmq serve``: the composition root of the broker."""
