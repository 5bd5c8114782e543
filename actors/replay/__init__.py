"""Replays: subscriptions that read the log, from a moment on, and go on with new messages."""
