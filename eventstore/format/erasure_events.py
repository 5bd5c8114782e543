"""The events of sealed contents: the keys of topics, and their erasure.

What is published on a personal topic is sealed under the key of the topic (``sealing``). An erasure
destroys keys: it is requested in the log first, then the keys are destroyed, then the log says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from eventstore.format.positions import Run


@dataclass(slots=True)
class TopicsKeyed:
    """From here on, what is published on these topics is sealed under their keys."""

    topics: list[str]
    """Topics that had no key."""
    keys: list[Run]
    """The number of the key of each topic; no other topic has or had it."""
    checks: list[str]
    """A hash of each key, in hexadecimal: no other key opens its contents."""
    e: Literal["TopicsKeyed"] = "TopicsKeyed"
    v: Literal[1] = 1


@dataclass(slots=True)
class KeysSnapshot:
    """The keys of topics that exist at this position, in a checkpoint; several events if many."""

    topics: list[str]
    """The topics of these keys."""
    keys: list[Run]
    """The number of the key of each topic."""
    highest: int
    """The highest number that a key has, or had."""
    erasure: int
    """The number of the last erasure; 0: there was none."""
    pending: list[Run] = field(default_factory=list)
    """The keys that this erasure destroys, while it is not completed."""
    e: Literal["KeysSnapshot"] = "KeysSnapshot"
    v: Literal[1] = 1


@dataclass(slots=True)
class ErasureRequested:
    """What was published on these topics is erased: the broker no longer sends it.

    Their keys are destroyed next, which ``Erased`` confirms.
    """

    erasure: int
    """Its number, from 1 without gaps."""
    by: str
    """Name given by the operator, who had the credentials of the NATS account."""
    cause: str
    """request; restored: the keys had been erased before the log was restored from a backup;
    followed: it was requested in another log of the node; copies: another log, from which this one
    had taken contents since its own erasure, erased them."""
    topics: list[str]
    """The topics whose contents are erased."""
    keys: list[Run]
    """The number of the key of each topic."""
    e: Literal["ErasureRequested"] = "ErasureRequested"
    v: Literal[1] = 1
    filter: str = ""
    """Topic filter of the request, which the other logs of the node follow; empty: there are none,
    or another event of the same request has it."""


REQUEST: Final = "request"
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
