"""The rules that a log is audited by, session by session, as pure functions."""
