"""The connection and queries of ``foldmq top``."""
