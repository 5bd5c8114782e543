"""The events of destinations: the cursors up to which the outbox has passed messages on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from eventstore.format.positions import Run

NATS_DESTINATION: Final = "nats"
"""Name and kind of the destination of the bridge to NATS; settings cannot have it."""


@dataclass(slots=True)
class DestinationOpened:
    """A destination gets the QoS 1 and 2 messages that take effect after a position and match.

    Checkpoints repeat it, with ``run``, and a Forwarded with its cursor follows.
    """

    to: str
    """Name of the destination, as in the settings."""
    kind: str
    """Kind of its sink, such as http."""
    after: int
    """Position, packed: later messages are due."""
    filters: list[str]
    """Topic filters: messages that match one of them are due."""
    digest: str
    """Digest of the settings that determine which messages are due."""
    cause: str
    """first: the destination is new; changed: another selection of messages is due from now on;
    repeated: by a checkpoint."""
    by: str
    """What opened it: settings."""
    e: Literal["DestinationOpened"] = "DestinationOpened"
    v: Literal[1] = 1
    run: int = 0
    """Position of the event that a checkpoint repeats, packed; 0: it is no repetition."""
    paused: bool = False
    """An operator has paused the destination; written by checkpoints."""
    refused: int = 0
    """Number of messages that it has refused so far; written by checkpoints."""
    losses: int = 0
    """Number of ForwardLost so far, but erased and skipped ones; written by checkpoints. Earlier
    versions counted those that were skipped."""
    refs: list[Run] = field(default_factory=list)
    """Positions of refused messages that are to be sent again; written by checkpoints."""


@dataclass(slots=True)
class Forwarded:
    """A destination has stored every message that was due to it up to a position."""

    to: str
    """Name of the destination."""
    through: int
    """That position, packed."""
    e: Literal["Forwarded"] = "Forwarded"
    v: Literal[1] = 1
    received: int = 0
    """Position up to which a receiver at QoS 2 has the messages, although not all of them are
    released; 0: no receiver has a session in this run."""
    number: int = 0
    """Number of messages that were due up to ``through`` since DestinationOpened; 0 for NATS, which
    stores none."""
    count: int = 0
    """Number of messages that were stored since the previous Forwarded."""
    refs: list[Run] = field(default_factory=list)
    """Positions of refused messages that were sent again, as an operator wanted, or are gone."""


@dataclass(slots=True)
class ForwardRefused:
    """A destination refused messages: one entry each. Only an operator has them sent again."""

    to: str
    """Name of the destination."""
    refs: list[Run]
    """Positions of the messages."""
    reason: str
    """The answer of the destination, as text."""
    e: Literal["ForwardRefused"] = "ForwardRefused"
    v: Literal[1] = 1
    code: int = 0
    """The status code of HTTP, or the reason code of MQTT; 0: none."""


@dataclass(slots=True)
class ForwardLost:
    """Messages that were due to a destination are not sent to it: those in a range of positions."""

    to: str
    """Name of the destination."""
    after: int
    """Position before the range, packed."""
    until: int
    """Last position of the range, packed."""
    reason: str
    """max_behind, max_behind_bytes or keep_bytes: the log was cut, because the destination was
    further behind than this bound permits; skip: an operator skipped them; cut: the log no longer
    has a QoS 2 message that was released in the range; erased: the contents were erased."""
    e: Literal["ForwardLost"] = "ForwardLost"
    v: Literal[1] = 1
    messages: int = -1
    """Number of messages; -1: they were not counted."""


@dataclass(slots=True)
class OriginTaken:
    """A bridge of another log brought messages, which this log takes once each.

    It is in the turn of their MessagePublished. Checkpoints repeat it, without messages.
    """

    client: str
    """The bridge: a client of this log."""
    log: str
    """Name of the other log."""
    run: int
    """Position there at which its destination was opened, packed."""
    through: int
    """Position there up to which the messages are in this log, packed."""
    recorded_ms: int
    """Time of the record there, Unix time in milliseconds: a log that was restored from a backup
    has its positions once more, at a later time."""
    refs: list[Run]
    """Positions of the messages in this log."""
    origins: list[Run]
    """Their positions in the other log, in the same order."""
    e: Literal["OriginTaken"] = "OriginTaken"
    v: Literal[1] = 1


@dataclass(slots=True)
class DestinationClosed:
    """A destination is no longer in the settings: no message is due to it."""

    to: str
    """Name of the destination."""
    reason: str
    """removed: from the settings."""
    e: Literal["DestinationClosed"] = "DestinationClosed"
    v: Literal[1] = 1


DestinationEvent: TypeAlias = (
    DestinationOpened | Forwarded | ForwardRefused | ForwardLost | OriginTaken | DestinationClosed
)
