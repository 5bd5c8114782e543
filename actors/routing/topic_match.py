"""Finds the receivers of a topic in steps: one turn may not suffice to evaluate all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from actors.routing.subscriber import Subscriber
from protocol.mqtt5 import NO_LOCAL, RETAIN_AS_PUBLISHED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Receivers: TypeAlias = tuple[
    tuple[Subscriber, ...], tuple[Subscriber, ...], tuple[Subscriber, ...], bool
]
"""The arguments of a ``Route``: the receivers of a message, the subscribers that may not read it,
the subscriptions through which sessions get their own publications, and whether some receivers
have No Local."""


class TopicMatch:
    """The evaluation of the subscriptions that match a topic.

    Each session receives through its matching subscription with the highest QoS; among several
    with that QoS, one with Retain As Published. Subscriptions may change between the steps: those
    of the sessions concerned are evaluated again before the match is done.
    """

    __slots__ = (
        "_activated",
        "_at",
        "_best",
        "_changed",
        "_denied",
        "_found",
        "_no_local",
        "_plain",
        "large",
        "last",
        "topic",
    )

    def __init__(self, topic: str, found: list[Subscriber | str], *, large: bool = False) -> None:
        """Begin with the entries of the index: subscriptions, and names of passive sessions."""
        self.topic = topic
        self.large = large
        """Whether it takes more than one step."""
        self.last = 0.0
        """When the last step was, on the clock of the router."""
        self._found = found
        self._at = 0
        self._best: dict[str, Subscriber] = {}
        self._denied: dict[str, Subscriber] = {}
        self._plain: dict[str, Subscriber] = {}
        """Session -> its best subscription without No Local, where it also has one with it."""
        self._no_local = False
        self._changed: set[str] = set()
        """Sessions whose subscriptions changed since they were evaluated."""
        self._activated: set[str] = set()
        """Passive sessions that were activated and have not become passive again."""

    @property
    def done(self) -> bool:
        """Whether all that was found is evaluated."""
        return self._at >= len(self._found)

    def evaluate(self, most: int) -> str | None:
        """Evaluate up to ``most`` subscriptions.

        Return the name of the passive session at which it stops, if any.
        """
        topic, best = self.topic, self._best
        begin = self._at
        for found in self._found[begin : begin + most]:
            if isinstance(found, str):
                if found not in self._activated:
                    return found
            elif found.ended:
                pass
            elif found.acl is not None and not found.acl.may_read(topic):
                worse = self._denied.get(found.session)
                if worse is None or found.qos >= worse.qos:
                    self._denied[found.session] = found
            else:
                if found.options & NO_LOCAL:
                    self._no_local = True
                other = best.get(found.session)
                if other is None:
                    best[found.session] = found
                else:
                    self._overlap(found, other)
            self._at += 1
        return None

    def _overlap(self, found: Subscriber, other: Subscriber) -> None:
        """Choose between two subscriptions of a session."""
        session = found.session
        if session in self._plain or (found.options | other.options) & NO_LOCAL:
            for one in (other, found):
                plain = self._plain.get(session)
                if not one.options & NO_LOCAL and (plain is None or is_better(one, plain)):
                    self._plain[session] = one
        if is_better(found, other):
            self._best[session] = found

    def activated(self, session: str) -> None:
        """Note that a passive session was activated: its subscriptions are now in the index."""
        self._changed.add(session)
        self._activated.add(session)

    def changed(self, session: str) -> None:
        """Note that subscriptions of a session changed."""
        self._changed.add(session)
        self._activated.discard(session)

    def resume(self, match: Callable[[str], list[Subscriber | str]]) -> bool:
        """Return whether subscriptions of changed sessions must be evaluated again."""
        if not self._changed:
            return False
        changed, self._changed = self._changed, set()
        for session in changed:
            self._best.pop(session, None)
            self._denied.pop(session, None)
            self._plain.pop(session, None)
        self._found = [one for one in match(self.topic) if _session_of(one) in changed]
        self._at = 0
        return not self.done

    def receivers(self) -> Receivers:
        """Return what was found, once it is done."""
        best = self._best
        denied: Iterable[Subscriber] = self._denied.values()
        if self._denied and best:
            denied = [one for one in denied if one.session not in best]
        no_local = self._no_local and any(one.options & NO_LOCAL for one in best.values())
        own: Iterable[Subscriber] = ()
        if no_local:
            own = [one for name, one in self._plain.items() if best[name].options & NO_LOCAL]
        return tuple(best.values()), tuple(denied), tuple(own), no_local


def is_better(found: Subscriber, other: Subscriber) -> bool:
    """Return whether a session receives through subscription ``found`` rather than ``other``."""
    if found.qos != other.qos:
        return found.qos > other.qos
    return bool(found.options & ~other.options & RETAIN_AS_PUBLISHED)


def _session_of(found: Subscriber | str) -> str:
    return found if isinstance(found, str) else found.session
