"""The NATS subject on which a broker tells its outbox how far its log is on disk."""


def stored_subject(node: str) -> str:
    """Return the subject of a log's announcements: the sequence of its last durable record."""
    return f"foldmq.outbox.{node}.stored"


def live_subject(node: str) -> str:
    """Return the subject of the messages at QoS 0 for connections to other brokers."""
    return f"foldmq.outbox.{node}.live"
