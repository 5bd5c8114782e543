"""Where commands read a log from, how they fold it, and its events as text."""
