"""The recovery check: whether a restarted broker has the state that its log tells."""
