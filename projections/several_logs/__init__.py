"""Answers about all logs of a node or cluster: their events by time, and their states joined.

A position is one of a single log, so a moment of all logs is a time. Errors about one of the logs
name it. The history of a message in several logs is in ``projections.explanation``.
"""
