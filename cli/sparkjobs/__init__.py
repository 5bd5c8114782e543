"""``foldmq spark``: Spark jobs on a log."""
