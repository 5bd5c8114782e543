"""The process of a broker's outbox."""

import contextlib
import os
import signal
from pathlib import Path

from harness.broker import Broker, children_of
from harness.waiting import until


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
