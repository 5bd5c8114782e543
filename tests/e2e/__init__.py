"""Whole programs against a whole broker: client libraries, restarts, crashes, the command line."""
