"""given(events).when(command).then(events): the form of tests of folds and decisions.

A command is a function from the state to the result of a decision. Events get positions and times
of their own, one record each, unless they are given with ``at``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from typing import Any

from eventstore.format.event_parsing import Event
from eventstore.format.events import (
    Delivered,
    MessagePublished,
    Queued,
    SessionClosed,
    SessionOpened,
    Subscribed,
)
from eventstore.format.positions import Position, position, to_runs
from projections.state.session import SessionState, SubscriptionState, evolve

CLIENT = "c"
START_MS = 1_000_000
STEP_MS = 10


class Specification:
    """A session's state, from events; what a command decides is checked and applied."""

    def __init__(self) -> None:
        self.state = SessionState(CLIENT)
        self.sequence = 0
        self.decided: list[Event] = []

    @property
    def now_ms(self) -> int:
        """Time of the record of the last event."""
        return START_MS + STEP_MS * self.sequence

    def and_(self, *events: Event) -> Specification:
        """More happened."""
        for event in events:
            self.sequence += 1
            evolve(self.state, event, position(self.sequence, 0), self.now_ms)
        return self

    def when(self, command: Callable[[SessionState], Any]) -> Specification:
        """Let a command decide; it must leave the state alone."""
        before = snapshot(self.state)
        self.decided = events_of(command(self.state))
        assert snapshot(self.state) == before, "a decision changed the state"
        return self

    def then(self, *events: Event) -> Specification:
        """Compare what was decided, and apply it."""
        assert self.decided == list(events), f"decided: {self.decided}, expected: {list(events)}"
        return self.and_(*events)

    def then_nothing(self) -> Specification:
        """Nothing was decided."""
        return self.then()

    def subscription(self, topic_filter: str) -> SubscriptionState:
        """The subscription with this filter."""
        return self.state.subscriptions[topic_filter]


def given(*events: Event) -> Specification:
    """The events that happened before."""
    return Specification().and_(*events)


def subscriber(qos: int = 1, *events: Event) -> Specification:
    """A session with a subscription to a, and what happened then."""
    return given(opened(), subscribed(("a", qos)), *events)


def events_of(decision: Any) -> list[Event]:
    """The events in what a decision returned."""
    if decision is None:
        return []
    if hasattr(decision, "events"):
        return list(decision.events)
    if isinstance(decision, list):
        return decision
    return [decision]


def snapshot(state: SessionState) -> dict[str, Any]:
    """A state as plain values, dicts as ordered pairs: equal if and only if nothing differs."""

    def sent(table: dict[int, Any]) -> list[Any]:
        return [
            (pid, one.ref, one.flags, one.subscription.filter, one.sent_ms)
            for pid, one in table.items()
        ]

    values = {each.name: getattr(state, each.name) for each in fields(state)}
    del values["links"], values["saved"]  # a cache, and what the projector notes
    return {
        **values,
        "subscriptions": [
            (
                *(key, one.filter, one.qos, one.active, one.outstanding, list(one.queue or ())),
                *(one.options, one.identifier),
                one.queue.expiries(len(one.queue)) if one.queue else [],
            )
            for key, one in state.subscriptions.items()
        ],
        "inflight": sent(state.inflight),
        "releasing": sent(state.releasing),
        "inbound": list(state.inbound.items()),
        "waiting": list(state.waiting),
        "replays": [
            (key, one.filter, list(asdict(one.replay).items()) if one.replay is not None else None)
            for key, one in state.replays.items()
        ],
    }


# Events, with what does not matter filled in.


def opened(*, resumed: bool = False, clean: bool = False, generation: int = 1) -> SessionOpened:
    return SessionOpened(CLIENT, resumed, clean, 4, generation=generation)


def closed() -> SessionClosed:
    return SessionClosed(CLIENT, "closed")


def subscribed(*filters: tuple[str, int]) -> Subscribed:
    return Subscribed(CLIENT, list(filters))


def delivered(
    topic_filter: str,
    qos: int,
    pids: Sequence[int],
    refs: Sequence[Position],
    *,
    retain: bool = False,
    queued: int = -1,
) -> Delivered:
    return Delivered(
        CLIENT, topic_filter, qos, to_runs(pids), to_runs(refs), retain=retain, queued=queued
    )


def queued(
    topic_filter: str, qos: int, refs: Sequence[Position], size: int, *, retain: bool = False
) -> Queued:
    return Queued(CLIENT, topic_filter, qos, to_runs(refs), size, retain=retain)


def published(
    qos: int,
    messages: Sequence[tuple[str, bytes]],
    pids: Sequence[int] = (),
    *,
    retain: bool = False,
    will: bool = False,
    session: str = CLIENT,
) -> MessagePublished:
    """A MessagePublished as the publisher writes it."""
    topics = list(dict.fromkeys(topic for topic, _ in messages))
    return MessagePublished(
        session,
        qos,
        retain,
        topics,
        [topics.index(topic) for topic, _ in messages] if len(topics) > 1 else [],
        to_runs(pids),
        [len(payload) for _, payload in messages],
        0,
        len(messages),
        will=will,
    )


__all__ = [
    "CLIENT",
    "START_MS",
    "STEP_MS",
    "Specification",
    "closed",
    "delivered",
    "given",
    "opened",
    "published",
    "queued",
    "snapshot",
    "subscribed",
    "subscriber",
]
