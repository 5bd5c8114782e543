"""Folds over events: the state of a session, the retained messages, the whole node."""
