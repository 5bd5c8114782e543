"""Silent clients, holes in the messages of a topic, and topics with counts: as rows and as JSON."""

from dataclasses import dataclass
from typing import Any

from eventstore import display
from eventstore.format.positions import Position, format_position


@dataclass(frozen=True, slots=True)
class PauseView:
    """A time without messages, and what the log knows about it."""

    start_ms: int
    end_ms: int
    cause: str
    """Why no message came: ``broker_stopped``, ``client_away``, ``client_silent`` (it was
    connected), ``log_cut``, or ``not_known`` (the log does not say whether it was connected)."""
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
    fields: dict[str, Any] = {
        "from": display.iso(pause.start_ms),
        "to": display.iso(pause.end_ms),
        "length_ms": pause.length_ms,
        "cause": pause.cause,
        "broker_stopped_ms": pause.stopped_ms,
        "client_away_ms": pause.away_ms,
        "client_silent_ms": pause.silent_ms,
    }
    return {**fields, "close_reason": pause.close_reason} if pause.close_reason else fields


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
