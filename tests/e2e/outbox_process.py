"""The process of a broker's outbox."""

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.broker import Broker, children_of
from harness.waiting import until

VICTIMS = (
    pytest.param("broker", marks=pytest.mark.long),
    pytest.param("outbox", marks=pytest.mark.long),
    "everything",
)
"""What is killed beside the other side: sinks differ in what becomes of it, the outbox does not."""


def outbox_of(broker: Broker) -> int:
    """The process of the outbox; 0: there is none."""
    for pid in children_of(broker.pid):
        with contextlib.suppress(OSError):  # it has just ended
            if b"outbox" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                return pid
    return 0


def kill_outbox(broker: Broker) -> None:
    """SIGKILL to the process of the outbox, when there is one."""
    found: list[int] = []
    until(lambda: found.append(outbox_of(broker)) or found[-1], "the outbox")
    os.kill(found[-1], signal.SIGKILL)


def strike(broker: Broker, victim: str, other: Callable[[], object] | None = None) -> None:
    """SIGKILL to the outbox, the broker or everything; the broker runs again. Else `other`."""
    if victim == "outbox":
        kill_outbox(broker)
    elif victim in ("broker", "everything"):
        if victim == "broker":
            broker.kill()
        else:
            broker.kill_all()
        broker.start()
    elif other is not None:
        other()
