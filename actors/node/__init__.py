"""State of a node that does not depend on sessions: counters, backpressure, operator commands."""

from actors.node.backpressure import BACKLOG, Backlog, SlowReaderBackpressure
from actors.node.counters import Counters, watch_loop
from actors.node.operator_commands import OperatorCommand
from actors.node.read_pause import ReadPause

__all__ = [
    "BACKLOG",
    "Backlog",
    "Counters",
    "OperatorCommand",
    "ReadPause",
    "SlowReaderBackpressure",
    "watch_loop",
]
