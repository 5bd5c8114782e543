"""The parts of a session's state, one by one: what a comparison names, and how it shows them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from eventstore import display
from eventstore.format.positions import Position, format_position
from eventstore.format.stored_properties import expiry_ms
from eventstore.reading import position_text
from projections.state.waiting_queue import QOS_MASK, WaitingQueue
from projections.views.replay_view import READING, state_text, vector_text
from projections.views.session_text import will_text

if TYPE_CHECKING:
    from projections.state.session import InFlight, SessionState


@dataclass(frozen=True, slots=True)
class SessionField:
    """A part of a session as a list, and its elements as text."""

    name: str
    items: Callable[[SessionState], list[Any]]
    show: Callable[[Any, int], str]
    """Arguments: the element, and the sum of the jumps of the clock, which its times lack."""
    count: Callable[[SessionState], int] | None = None
    """Length of the list, where building it is expensive."""


def _plain(value: object, _jumped_ms: int = 0) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else display.name(str(value))


def _one(
    name: str, of: Callable[[SessionState], object], show: Callable[[Any, int], str]
) -> SessionField:
    return SessionField(name, lambda state: [of(state)], show)


def _deliveries(name: str, table: Callable[[SessionState], dict[int, InFlight]]) -> SessionField:
    def items(state: SessionState) -> list[Any]:
        return [
            (pid, sent.ref, sent.flags, sent.subscription.filter, sent.sent_ms)
            for pid, sent in table(state).items()
        ]

    return SessionField(name, items, _show_sent, lambda state: len(table(state)))


def _show_sent(delivery: tuple[int, Position, int, str, int], jumped_ms: int) -> str:
    pid, ref, flags, topic_filter, sent_ms = delivery
    return (
        f"packet {pid}: message {format_position(ref)}, QoS {flags & QOS_MASK}, for "
        f"{display.name(topic_filter)}, sent {display.clock(sent_ms + jumped_ms)}"
    )


def _queues(state: SessionState) -> list[Any]:
    return [
        (held.filter, held.queued_bytes, held.queue.runs())
        for held in state.waiting.values()
        if held.queue is not None
    ]


def _show_queue(item: tuple[str, int, list[Any]], jumped_ms: int) -> str:
    topic_filter, size, runs = item
    queue = WaitingQueue(runs)
    expiry = queue.expiry()
    ends = f", the first expires {display.clock(expiry_ms(expiry) + jumped_ms)}"
    until = ends if expiry else ""
    return (
        f"{display.name(topic_filter)}: {display.count_of(len(queue), 'message')}, "
        f"{display.size(size)} ({position_text.positions_text(list(queue.ref_runs()))}){until}"
    )


def _show_subscription(item: tuple[str, int, bool, int, int], _jumped_ms: int) -> str:
    topic_filter, qos, active, options, identifier = item
    more = f", options 0x{options:02x}" if options else ""
    more += f", identifier {identifier}" if identifier else ""
    return f"{display.name(topic_filter)} QoS {qos}{more}" + ("" if active else " (unsubscribed)")


def _show_inbound(message: tuple[int, Position], _jumped_ms: int) -> str:
    return f"packet {message[0]}: message {format_position(message[1])}"


def _show_closed(closed_ms: int, jumped_ms: int) -> str:
    return display.clock(closed_ms + jumped_ms) if closed_ms else "never"


def _show_will(will: Any, _jumped_ms: int) -> str:
    return "none" if will is None else f"{will_text(will)} ({format_position(will.ref)})"


def _replays(state: SessionState) -> list[Any]:
    return [
        (name, asdict(held.replay))
        for name, held in state.replays.items()
        if held.replay is not None
    ]


def _show_replay(item: tuple[str, dict[str, Any]], jumped_ms: int) -> str:
    topic_filter, replay = item
    counts = ", ".join(f"{name} {count:,}" for name, count in replay["left_out"].items())
    return (
        f"{display.name(topic_filter)}: {display.name(replay['topic_filter'])} through "
        f"{vector_text(replay['through']) or 'nothing'}, {replay['sent']:,} sent, "
        f"{counts or 'none'} left out, {state_text(replay['state'] or READING)}, since "
        f"{display.clock(replay['reached_ms'] + jumped_ms)}"
    )


FIELDS = (
    _one("connected", lambda state: state.connected, _plain),
    _one("clean session", lambda state: state.clean, _plain),
    _one("connections", lambda state: state.generation, _plain),
    _one("protocol level", lambda state: state.level, _plain),
    _one("bridge", lambda state: state.bridge, _plain),
    _one("session expiry", lambda state: state.expiry, _plain),
    _one("user", lambda state: state.user, _plain),
    _one("receive maximum", lambda state: state.receive_maximum, _plain),
    _one("maximum packet size", lambda state: state.packet_maximum, _plain),
    _one("offline since", lambda state: state.closed_ms, _show_closed),
    _one("last packet identifier", lambda state: state.last_pid, _plain),
    _one("will", lambda state: state.will, _show_will),
    SessionField(
        "subscriptions",
        lambda state: [
            (entry.filter, entry.qos, entry.active, entry.options, entry.identifier)
            for entry in state.subscriptions.values()
        ],
        _show_subscription,
        lambda state: len(state.subscriptions),
    ),
    SessionField("replays", _replays, _show_replay, lambda state: len(state.replays)),
    SessionField("queued", _queues, _show_queue, lambda state: len(state.waiting)),
    _deliveries("in flight", lambda state: state.inflight),
    _deliveries("in flight, released", lambda state: state.releasing),
    SessionField(
        "inbound QoS 2",
        lambda state: list(state.inbound.items()),
        _show_inbound,
        lambda state: len(state.inbound),
    ),
)
