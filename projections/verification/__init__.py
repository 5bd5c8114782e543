"""Checks whether a log is intact: its records, events, checkpoints, and messages of other logs."""
