"""The events of sealed contents and names: the keys of topics and names, and their erasure.

What is published on a personal topic is sealed under the newest key of the topic (``sealing``). A
key is used for a period; then the topic gets another one. An erasure destroys keys: it is requested
in the log first, then the keys are destroyed, then the log says so. Times of periods are those of
records, without the jumps of the clock. The name of a person has a key as a topic has: its entry
(``name_entries``) is in the place of the topic, and its period never ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from eventstore.format.positions import Run


@dataclass(slots=True)
class TopicsKeyed:
    """From here on, what is published on these topics is sealed under their keys."""

    topics: list[str]
    """Topics that had no key, or none whose period goes on, and entries of names."""
    keys: list[Run]
    """The number of the key of each topic; no other topic has or had it. A key that the topic has
    already is used for a longer period: there is no room for others; or, if its period is over, for
    messages of another log in this turn, which were published in it."""
    checks: list[str]
    """A hash of each key, in hexadecimal: no other key opens its contents."""
    e: Literal["TopicsKeyed"] = "TopicsKeyed"
    v: Literal[1] = 1
    begins_ms: int = 0
    """When the period of these keys begins, Unix time in milliseconds."""
    ends_ms: int = 0
    """When it ends; 0: never."""


@dataclass(slots=True)
class KeysSnapshot:
    """The keys of topics that exist at this position, in a checkpoint; several events if many."""

    topics: list[str]
    """The topic of each key: several times if it has several, the oldest first."""
    keys: list[Run]
    """The number of each key."""
    highest: int
    """The highest number that a key has, or had."""
    erasure: int
    """The number of the last erasure; 0: there was none."""
    pending: list[Run] = field(default_factory=list)
    """The keys that this erasure destroys, while it is not completed."""
    e: Literal["KeysSnapshot"] = "KeysSnapshot"
    v: Literal[1] = 1
    begins_ms: list[Run] = field(default_factory=list)
    """When the period of each key begins; empty: none has a period."""
    ends_ms: list[Run] = field(default_factory=list)
    """When it ends."""


@dataclass(slots=True)
class ErasureRequested:
    """What was published on these topics under these keys is erased: the broker no longer sends it.

    The keys are destroyed next, which ``Erased`` confirms.
    """

    erasure: int
    """Its number, from 1 without gaps."""
    by: str
    """Name given by the operator, who had the credentials of the NATS account."""
    cause: str
    """request; keep: the contents are older than personal_keep; restored: the keys had been erased
    before the log was restored from a backup; followed: it was requested in another log of the
    node; copies: another log, from which this one had taken contents since its own erasure, erased
    them."""
    topics: list[str]
    """The topic, or the entry of the name, of each key."""
    keys: list[Run]
    """The numbers of the keys."""
    e: Literal["ErasureRequested"] = "ErasureRequested"
    v: Literal[1] = 1
    before_ms: int = 0
    """Only contents of periods that ended up to here are erased; 0: all contents of the topics."""
    filter: str = ""
    """Topic filter of the request, which the other logs of the node follow; empty: there are none,
    or another event of the same request has it."""


REQUEST: Final = "request"
KEEP: Final = "keep"
RESTORED: Final = "restored"
FOLLOWED: Final = "followed"
COPIES: Final = "copies"
"""Causes of ErasureRequested."""


@dataclass(slots=True)
class Erased:
    """The keys of an erasure are destroyed; only copies of the key file may still have them."""

    erasure: int
    """Number of the erasure."""
    keys: int
    """Number of its keys."""
    e: Literal["Erased"] = "Erased"
    v: Literal[1] = 1


ErasureEvent: TypeAlias = TopicsKeyed | KeysSnapshot | ErasureRequested | Erased
