"""Silent clients, holes in the messages of a topic, and topics with counts: as JSON and as text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from eventstore import display
from eventstore.format.positions import format_position
from eventstore.reasons import close_text

if TYPE_CHECKING:
    from eventstore.format.positions import Position

CAUSES: Final = {
    "broker_stopped": "the broker was stopped",
    "client_away": "the client was away",
    "client_silent": "the client was connected and silent",
    "log_cut": "the log was cut: what was there is not known",
    "not_known": "not known: the log does not say whether the client was connected",
}
"""Why no message came, in words."""


@dataclass(frozen=True, slots=True)
class PauseView:
    """A time without messages, and what the log knows about it."""

    start_ms: int
    end_ms: int
    cause: str
    """A key of ``CAUSES``."""
    stopped_ms: int = 0
    """How long of it the broker was stopped."""
    away_ms: int = 0
    """How long of it the client was away while the broker ran."""
    silent_ms: int = 0
    """How long of it the client was connected."""
    close_reason: str = ""
    """Why the last connection of the client before its end ended; empty: it did not."""

    @property
    def length_ms(self) -> int:
        """Its length."""
        return self.end_ms - self.start_ms


@dataclass(frozen=True, slots=True)
class SilenceView:
    """A client that publishes less often than it used to."""

    log: str
    """Its log; empty if there is only one."""
    client: str
    topic: str
    """Topic of its last message."""
    position: Position
    """Its last message."""
    messages: int
    """How many messages were counted."""
    usual_ms: int
    """Its usual interval, the median of the last ones."""
    pause: PauseView
    """From its last message on."""


@dataclass(frozen=True, slots=True)
class GapView:
    """A hole in the messages of a topic."""

    log: str
    """Its log; empty if there is only one."""
    topic: str
    """Empty where the log was cut."""
    client: str
    """Who published the message before it; empty where the log was cut."""
    before: Position | None
    after: Position | None
    """The messages around it; None: there is none yet, or it was cut off."""
    usual_ms: int
    pause: PauseView


@dataclass(frozen=True, slots=True)
class TopicView:
    """The messages of a topic, or of all topics below some levels."""

    topic: str
    """The topic, or ``a/b/#``."""
    messages: int
    bytes: int
    """Bytes of their payloads."""
    topics: int
    last_ms: int
    """Time of the last one."""


def _pause_object(pause: PauseView) -> dict[str, Any]:
    found: dict[str, Any] = {
        "from": display.iso(pause.start_ms),
        "to": display.iso(pause.end_ms),
        "length_ms": pause.length_ms,
        "cause": pause.cause,
        "broker_stopped_ms": pause.stopped_ms,
        "client_away_ms": pause.away_ms,
        "client_silent_ms": pause.silent_ms,
    }
    return {**found, "close_reason": pause.close_reason} if pause.close_reason else found


def _of_log(log: str) -> dict[str, Any]:
    return {"log": log} if log else {}


def silence_object(view: SilenceView) -> dict[str, Any]:
    """Return a silent client as an object of ``--json``."""
    return {
        **_of_log(view.log),
        "client": view.client,
        "topic": view.topic,
        "position": format_position(view.position),
        "messages": view.messages,
        "usual_ms": view.usual_ms,
        **_pause_object(view.pause),
    }


def gap_object(view: GapView) -> dict[str, Any]:
    """Return a hole as an object of ``--json``."""
    return {
        **_of_log(view.log),
        "topic": view.topic,
        "client": view.client,
        "before": None if view.before is None else format_position(view.before),
        "after": None if view.after is None else format_position(view.after),
        "usual_ms": view.usual_ms,
        **_pause_object(view.pause),
    }


def topic_object(view: TopicView) -> dict[str, Any]:
    """Return the messages of a topic as an object of ``--json``."""
    return {
        "topic": view.topic,
        "topics": view.topics,
        "messages": view.messages,
        "bytes": view.bytes,
        "last_at": display.iso(view.last_ms),
    }


def _cause_text(pause: PauseView) -> str:
    reason = f" ({close_text(pause.close_reason)})" if pause.close_reason else ""
    return CAUSES[pause.cause] + reason


def silence_line(view: SilenceView) -> str:
    """Return a silent client on a line."""
    return (
        f"{display.name(view.client)}: silent for {display.duration(view.pause.length_ms)} since "
        f"{format_position(view.position)} on {display.name(view.topic)}, usually a message each "
        f"{display.duration(view.usual_ms)}: {_cause_text(view.pause)}"
    )


def gap_line(view: GapView) -> str:
    """Return a hole on a line."""
    pause = view.pause
    if not view.topic:
        until = display.clock(pause.end_ms)
        return f"{display.log_prefix(view.log)}before {until}: {CAUSES[pause.cause]}"
    after = "now" if view.after is None else format_position(view.after)
    before = "" if view.before is None else format_position(view.before)
    return (
        f"{display.name(view.topic)}: none for {display.duration(pause.length_ms)} from "
        f"{display.clock(pause.start_ms)} ({before} to {after}), usually each "
        f"{display.duration(view.usual_ms)}: {_cause_text(pause)}"
    )


def topic_line(view: TopicView) -> str:
    """Return the messages of a topic on a line."""
    of = f" on {display.count_of(view.topics, 'topic')}" if view.topics > 1 else ""
    return (
        f"{display.name(view.topic)}: {display.count_of(view.messages, 'message')}{of}, "
        f"{display.size(view.bytes)}, the last at {display.clock(view.last_ms)}"
    )
