"""The rules that a log is audited by, session by session: pure functions."""
