"""The node that owns a log according to its records, whatever the name of their stream."""

from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Final

from eventstore.display import escaped
from eventstore.display import name as shown
from eventstore.errors import CorruptLog
from eventstore.nats.discovery import LOG_STREAM_PREFIX
from spark.runtime.marked_errors import BadOption, name_log_in_errors
from spark.tables.record_frames import frame_of
from spark.tables.stored_log import StoredLog, open_records

_NEAR: Final = 64
"""Records examined if the last one is damaged or missing."""
_LISTED: Final = 10


def node_of(stored: StoredLog) -> str:
    """Return the node that owns a log, from its last readable record.

    Another node wrote the records from before a restore with ``--new-node``. If no record is
    readable, the node in the name of the stream. Raises the errors of reading.
    """
    begin, last = stored.first, stored.last
    for first, until in ((last, last), (last - _NEAR, last - 1), (begin, begin + _NEAR)):
        nodes = _nodes(stored, max(begin, first), min(until, last))
        if nodes:
            return nodes[-1]
    return stored.stream.removeprefix(LOG_STREAM_PREFIX)


def _nodes(stored: StoredLog, first: int, last: int) -> list[str]:
    """Return the nodes of the readable records between two sequences."""
    nodes: list[str] = []
    if first <= last:
        with name_log_in_errors(stored.stream), open_records(stored, first, last) as records:
            for sequence, data in records:
                with suppress(CorruptLog):
                    nodes.append(frame_of(sequence, data).node)
    return nodes


def nodes_of(logs: Iterable[StoredLog]) -> dict[str, str]:
    """Return the node of each log, by the names of their streams.

    Raises BadOption if two belong to the same node: their common records would count twice.
    """
    nodes: dict[str, str] = {}
    by_node: dict[str, str] = {}
    for stored in logs:
        node = node_of(stored)
        first = _nodes(stored, stored.first, min(stored.first, stored.last))
        other = by_node.setdefault(first[0] if first else node, stored.stream)
        if other != stored.stream:
            raise BadOption(
                f"{escaped(other)} and {escaped(stored.stream)} are both logs of node "
                f"{shown(first[0] if first else node)}: read one of them"
            )
        nodes[stored.stream] = node
    return nodes


def check_claimed_nodes(claimed: Iterable[str], nodes: Collection[str]) -> None:
    """Raise BadOption for claims about a node whose log is not read."""
    for node in sorted(claimed):
        if node not in nodes:
            names = [shown(name) for name in sorted(nodes)[:_LISTED]]
            listed = ", ".join(names) + (", ..." if len(nodes) > _LISTED else "")
            raise BadOption(
                f"something is claimed of node {shown(node)}, whose log is not read: there is "
                f"{listed or 'none'}"
            )
