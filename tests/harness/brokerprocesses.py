"""The processes of a broker with ``--processes 2``, and clients of each."""

from pathlib import Path

from eventstore.partitions import partition_of
from harness.broker import Broker, children_of

TWO = ("--processes", "2")


def processes(broker: Broker) -> dict[int, int]:
    """Return the broker processes by number: their process identifiers."""
    found = {}
    for pid in children_of(broker.pid):
        for number in range(2):
            lock = Path(broker.data_dir, f"p{number}", "foldmq.lock")
            if lock.exists() and lock.read_text().strip() == str(pid):
                found[number] = pid
    return found


def client_of(number: int, name: str) -> str:
    """Return a client identifier that belongs to a process."""
    return next(
        found for found in (f"{name}{at}" for at in range(100)) if partition_of(found, 2) == number
    )
