"""The counters of the node, and the reasons why a connection is not read."""

from actors.node.backpressure import BACKLOG, Backlog, SlowReaderBackpressure
from actors.node.counters import Counters, watch_loop
from actors.node.read_pause import ReadPause

__all__ = [
    "BACKLOG",
    "Backlog",
    "Counters",
    "ReadPause",
    "SlowReaderBackpressure",
    "watch_loop",
]
