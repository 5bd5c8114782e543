"""``foldmq spark``: jobs of Spark on the log of a broker, from flags to exit codes."""
