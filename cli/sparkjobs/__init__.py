"""``foldmq spark``: Spark jobs on a log, from flags to exit codes."""
