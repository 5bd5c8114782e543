"""Damage to the log of a broker that does not run."""

import shutil
from pathlib import Path

from harness.broker import Broker

from e2e.tools import run


def block(broker: Broker) -> Path:
    return max(broker.data_dir.glob("jetstream/jetstream/*/streams/FOLDMQ_LOG_*/msgs/*.blk"))


def flip(broker: Broker, place: float) -> None:
    """Change a bit of a record, so far from the beginning of the log."""
    data = bytearray(block(broker).read_bytes())
    at = data.rindex(b"FMQ") if place == 1.0 else data.index(b"FMQ", int(len(data) * place))
    data[at + 50] ^= 0x01
    block(broker).write_bytes(data)


def without_projections(broker: Broker) -> None:
    for stream in broker.data_dir.glob("jetstream/jetstream/*/streams/FOLDMQ_STATE_*"):
        shutil.rmtree(stream)


def salvage(broker: Broker, to: Path) -> None:
    """Continue with what a salvage keeps of its log."""
    run("salvage", "--data-dir", str(broker.data_dir), "--to", str(to))
    broker.data_dir = to
