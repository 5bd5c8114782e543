"""Retained messages, readers of a topic and totals of a state, as typed rows and as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eventstore import display
from eventstore.format.positions import Position, format_position
from eventstore.format.sealing import readable_block
from eventstore.format.stored_properties import expiry_ms
from protocol.mqtt.message_properties import properties_object
from protocol.mqtt.shared_filters import SHARE, split_share
from protocol.mqtt.topics import matches

if TYPE_CHECKING:
    from projections.state.retained import RetainedMessage
    from projections.state.session import SessionState


@dataclass(frozen=True, slots=True)
class RetainedView:
    """A retained message without its payload."""

    topic: str
    qos: int
    size: int
    position: Position
    set_by: str | None
    """Session that published it."""
    expires_ms: int | None
    properties: dict[str, Any]


def retained_view(message: RetainedMessage, jumped_ms: int = 0) -> RetainedView:
    """Return a retained message; ``jumped_ms`` is the sum of the jumps of the clock."""
    return RetainedView(
        message.topic,
        message.qos,
        len(message.payload),
        message.ref,
        message.publisher or None,
        expiry_ms(message.expires) + jumped_ms if message.expires else None,
        properties_object(readable_block(message.block)),
    )


def retained_line(view: RetainedView, payload: bytes) -> str:
    """Return a retained message with its payload on a line."""
    expires = f", expires {display.clock(view.expires_ms)}" if view.expires_ms else ""
    return (
        f"  {format_position(view.position):>9}  {display.name(view.topic)}  QoS {view.qos}, "
        f"{display.size(view.size)}: {display.payload_text(payload)}"
        f"{expires}{properties_text(view.properties)}"
    )


def properties_text(properties: dict[str, Any]) -> str:
    """Return the properties of a message by name, each after a comma."""
    return "".join(
        f", {name.replace('_', ' ')} {_value(value)}" for name, value in properties.items()
    )


def _value(value: object) -> str:
    if isinstance(value, list):
        return " ".join(f"{display.name(str(key))}={display.name(str(own))}" for key, own in value)
    return display.name(str(value))


@dataclass(slots=True)
class TotalsView:
    """The totals of the states of one or several logs."""

    sessions: int = 0
    connected: int = 0
    subscriptions: int = 0
    in_flight: int = 0
    queued: int = 0
    queued_bytes: int = 0
    inbound: int = 0
    wills: int = 0
    retained: int = 0
    retained_bytes: int = 0
    retained_differing: int = 0
    """Topics whose retained message is not the same in all logs."""


def totals_view(
    sessions: Iterable[SessionState], retained: Iterable[tuple[RetainedMessage, bool]]
) -> TotalsView:
    """Return the totals; a session, or a topic, in several logs counts once.

    Each retained message comes with whether all logs have it.
    """
    totals = TotalsView()
    names: set[str] = set()
    for state in sessions:
        names.add(state.session)
        totals.connected += state.connected
        totals.subscriptions += len(state.active())
        totals.in_flight += len(state.inflight) + len(state.releasing)
        totals.queued += state.queued
        totals.queued_bytes += state.queued_bytes
        totals.inbound += len(state.inbound)
        totals.wills += state.will is not None
    totals.sessions = len(names)
    topics: set[str] = set()
    differing: set[str] = set()
    for message, everywhere in retained:
        if message.topic not in topics:
            topics.add(message.topic)
            totals.retained_bytes += len(message.payload)
        if not everywhere:
            differing.add(message.topic)
    totals.retained, totals.retained_differing = len(topics), len(differing)
    return totals


def totals_lines(totals: TotalsView, shared: int) -> Iterator[str]:
    """Yield the totals as text; ``shared`` of the sessions are shared subscriptions."""
    count_of, size = display.count_of, display.size
    away = totals.sessions - totals.connected - shared
    groups = f", {count_of(shared, 'shared subscription')}" if shared else ""
    yield (
        f"  sessions       {totals.sessions:,}: {totals.connected:,} connected, {away:,} offline"
        f"{groups}"
    )
    yield f"  subscriptions  {totals.subscriptions:,}"
    yield f"  in flight      {count_of(totals.in_flight, 'message')}"
    yield f"  queued         {count_of(totals.queued, 'message')}, {size(totals.queued_bytes)}"
    yield f"  inbound QoS 2  {count_of(totals.inbound, 'message')}"
    yield f"  wills          {totals.wills:,}"
    yield f"  retained       {count_of(totals.retained, 'topic')}, {size(totals.retained_bytes)}"
    if totals.retained_differing:
        differing = count_of(totals.retained_differing, "topic")
        yield f"                 {differing} not the same in all logs"


def shared_count(sessions: Iterable[SessionState]) -> int:
    """Return the number of shared subscriptions; one in several logs counts once."""
    return len({state.session for state in sessions if state.session.startswith(SHARE)})


@dataclass(frozen=True, slots=True)
class ReaderView:
    """A subscription that matches a topic."""

    log: str
    """Its log; empty if there is only one."""
    client: str
    filter: str
    qos: int | None
    """None: of a shared subscription whose members have their own."""
    connected: bool
    user: str | None
    """User name of the session's last connection; None: it had none, or it is not known."""


def readers_of(sessions: Iterable[tuple[str, SessionState]], topic: str) -> Iterator[ReaderView]:
    """Yield the subscriptions of sessions, each with its log, that match a topic.

    Members of a shared subscription are listed, not the shared subscription itself.
    """
    for log, state in sessions:
        if state.session.startswith(SHARE):
            continue
        for held in state.active():
            inner = split_share(held.filter)[1]
            if held.replay is not None:
                inner = held.replay.topic_filter
            if matches(inner, topic):
                yield ReaderView(
                    log, state.session, held.filter, held.qos, state.connected, state.user
                )


def reader_object(view: ReaderView) -> dict[str, Any]:
    """Return a subscription as an object of ``--json``."""
    log = {"log": view.log} if view.log else {}
    return {
        **log,
        "client": view.client,
        "filter": view.filter,
        "qos": view.qos,
        "connected": view.connected,
        "user": view.user,
    }
