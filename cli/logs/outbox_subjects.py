"""The NATS subject on which a broker tells its outbox how far its log is on disk."""

from __future__ import annotations


def stored_subject(node: str) -> str:
    """Return the subject of a log's announcements: the sequence of its last durable record."""
    return f"foldmq.outbox.{node}.stored"
