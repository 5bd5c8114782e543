from harness.fixtures import (
    broker,
    clients,
    foldmq_only,
    foreign,
    make_broker,
    make_disk,
    on_foreign,
    small_disk,
    topic,
)

__all__ = [
    "broker",
    "clients",
    "foldmq_only",
    "foreign",
    "make_broker",
    "make_disk",
    "on_foreign",
    "small_disk",
    "topic",
]
