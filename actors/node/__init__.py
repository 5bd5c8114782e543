"""Parts of a node: counters, backpressure, operator commands, activation of passive sessions."""

from actors.node.activation import Activation
from actors.node.backpressure import BACKLOG, Backlog, SlowReaderBackpressure
from actors.node.counters import Counters, watch_loop
from actors.node.operator_commands import OperatorCommand
from actors.node.read_pause import ReadPause
from actors.node.reload_outcome import ReloadOutcome
from actors.node.retained_pace import RetainedPace

__all__ = [
    "BACKLOG",
    "Activation",
    "Backlog",
    "Counters",
    "OperatorCommand",
    "ReadPause",
    "ReloadOutcome",
    "RetainedPace",
    "SlowReaderBackpressure",
    "watch_loop",
]
