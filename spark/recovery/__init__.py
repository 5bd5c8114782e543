"""The recovery check: whether a restarted broker has the state of its log."""
