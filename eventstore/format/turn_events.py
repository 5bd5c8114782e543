"""The events of several sessions in one turn: one event with columns for each kind.

Thousands of clients that send one packet each would cause thousands of events with one entry.
Instead, a turn of the event loop writes one event for each kind, with a column that contains the
session of each entry. The entries are in the order in which they happened, and each has its own
position, as in any event.

Only the writer of the log and its live fold use these events. When a record is read back, events of
single sessions replace them (``turn_expansion``), entry for entry at the same positions, so that
folds, audits and tools see one kind of event for one kind of fact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from eventstore.format.positions import Run


@dataclass(slots=True)
class TurnPublished:
    """Messages were accepted from several sessions in one turn: one entry each, none retained.

    Each entry is equivalent to a MessagePublished of one session.
    """

    sessions: list[str]
    """Client identifiers."""
    by: list[int]
    """For each message, the index of its session; empty when each has the next one, or all have
    the only one."""
    qos: int
    """1 or 2."""
    topics: list[str]
    """The distinct topics."""
    which: list[int]
    """For each message, the index of its topic; empty as ``by`` is."""
    pids: list[int]
    """Packet identifier of each message."""
    sizes: list[int] | int
    """Payload bytes of each message; one number when all have the same size."""
    at: int
    """Offset of the first payload in the record's payload area; the others follow it."""
    count: int
    """Number of messages."""
    e: Literal["TurnPublished"] = "TurnPublished"
    v: Literal[1] = 1
    blocks: Sequence[int] = ()
    """Bytes of each distinct block of properties (MQTT 5). The blocks are directly before the first
    payload, one after the other."""
    block_of: Sequence[int] = ()
    """For each message the number of its block, from 1, or 0 for none; empty when all have the
    same single block, or none has any."""


@dataclass(slots=True)
class TurnDelivered:
    """Messages were sent to several sessions in one turn, on arrival: one entry each.

    Each entry is equivalent to a Delivered of one subscription.
    """

    sessions: list[str]
    """Client identifiers: one for each subscription."""
    filters: list[str]
    """Topic filters: one for each subscription."""
    by: list[int]
    """For each message, the index of its subscription; empty when each has the next one, or all
    have the only one."""
    qos: int
    """QoS of the deliveries, 1 or 2."""
    pids: list[int]
    """Packet identifier of each delivery."""
    refs: list[Run]
    """Positions of the messages."""
    e: Literal["TurnDelivered"] = "TurnDelivered"
    v: Literal[1] = 1


@dataclass(slots=True)
class TurnAcked:
    """Acknowledgements of one kind were received from several sessions in one turn: one entry each.

    Each entry is equivalent to an Acked, Received or Completed of one session.
    """

    kind: Literal["Acked", "Received", "Completed"]
    """The event that each entry is equivalent to."""
    sessions: list[str]
    """Client identifiers."""
    by: list[int]
    """For each acknowledgement, the index of its session; empty when each has the next one, or all
    have the only one."""
    pids: list[int]
    """Packet identifier of each."""
    e: Literal["TurnAcked"] = "TurnAcked"
    v: Literal[1] = 1
    reasons: Sequence[int] = ()
    """Reason code of each (MQTT 5); empty when all are 0."""


@dataclass(slots=True)
class TurnReleased:
    """PUBREL was received from several sessions in one turn: one entry each.

    Each entry is equivalent to a Released of one session.
    """

    sessions: list[str]
    """Client identifiers."""
    by: list[int]
    """For each message, the index of its session; empty when each has the next one, or all have
    the only one."""
    pids: list[int]
    """Packet identifier of each message."""
    refs: list[Run]
    """Positions of the messages."""
    e: Literal["TurnReleased"] = "TurnReleased"
    v: Literal[1] = 1


TurnEvent: TypeAlias = TurnPublished | TurnDelivered | TurnAcked | TurnReleased

SINGLE_EVENT_OF: Final = {
    "MessagePublished": "TurnPublished",
    "Delivered": "TurnDelivered",
    "Acked": "TurnAcked",
    "Received": "TurnAcked",
    "Completed": "TurnAcked",
    "Released": "TurnReleased",
}
"""Event of one session -> event of a turn that may replace it in a record."""
