"""The log that a command reads: flags, moments, topics; and the log store of ``foldmq serve``."""
