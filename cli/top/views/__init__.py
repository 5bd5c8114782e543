"""The full-screen views of ``foldmq top``."""
