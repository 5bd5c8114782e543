"""Replays, subscriptions that read the log, as rows and as text: how far they have read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from eventstore import display
from eventstore.format.events import ReplayOpened, ReplayReached
from eventstore.format.positions import MAX_INDEX, Position, format_position, index_of, sequence_of
from protocol.mqtt.replay_filters import replayed_filter

if TYPE_CHECKING:
    from projections.state.session import ReplayState

READING: Final = "reading"
"""State of a replay that reads the past."""
_STATES: Final[dict[str, str]] = {
    READING: "reads the past",
    "live": "live",
    "withheld": "waits, because the client may not read these messages (permissions)",
    "ended": "at its end",
    "damaged": "ended, because the log is damaged",
    "too_many_topics": "ended, because there are too many topics",
}
_LEFT_OUT: Final[dict[str, str]] = {
    "not_permitted": "not permitted",
    "expired": "expired",
    "packet_too_large": "too large for the client",
    "no_local": "of the client itself",
    "erased": "erased",
}
"""Why a replay did not send messages."""


@dataclass(frozen=True, slots=True)
class ReplayView:
    """How far a replay has read."""

    topic_filter: str
    """The messages on topics that match this filter are sent."""
    state: str
    """reading, live, withheld, ended, damaged or too_many_topics."""
    through: str
    """The last positions that were read; empty: nothing was read."""
    sent: int
    """Number of messages sent."""
    left_out: Mapping[str, int]
    """Number of other messages that match, by the reason."""
    reached_ms: int
    """Time at which it came there."""
    lag: int | None = None
    """Number of records of this log that it has not read; None: not known."""


def replay_view(replay: ReplayState, jumped_ms: int = 0, last: int | None = None) -> ReplayView:
    """Return how far a replay has read; ``jumped_ms`` and ``last`` as for ``session_view``."""
    through = replay.through.get("")
    lag = None
    if last is not None and through is not None:
        lag = max(0, last - sequence_of(through + 1) + 1)
    return ReplayView(
        replay.topic_filter,
        replay.state or READING,
        vector_text(replay.through),
        replay.sent,
        dict(replay.left_out),
        replay.reached_ms + jumped_ms,
        lag,
    )


def replay_text(view: ReplayView, now_ms: int) -> str:
    """Return how far a replay has read, as text."""
    read = f"has read through {view.through}" if view.through else "has read nothing"
    if view.lag:
        read += f", {display.count_of(view.lag, 'record')} behind"
    since = display.duration(max(0, now_ms - view.reached_ms))
    return (
        f"replay: {state_text(view.state)}, {read} ({since} ago), "
        f"{display.count_of(view.sent, 'message')} sent{left_out_text(view.left_out)}"
    )


def state_text(state: str) -> str:
    """Return the state of a replay as text."""
    return _STATES.get(state) or display.escaped(state)


def place_text(through: Position) -> str:
    """Return a position, or the record that ends there."""
    sequence, index = sequence_of(through), index_of(through)
    return f"record {sequence}" if index == MAX_INDEX else format_position(through)


def vector_text(positions: Mapping[str, Position]) -> str:
    """Return positions in several logs: ``12.3``, or ``12.3, n-p1:7.0``; this log has no name."""
    return ", ".join(
        f"{display.escaped(log)}:{place_text(at)}" if log else place_text(at)
        for log, at in positions.items()
    )


def left_out_text(left_out: Mapping[str, int]) -> str:
    """Return the messages that a replay did not send, in brackets; empty if there are none."""
    counts = (
        f"{count:,} {_LEFT_OUT.get(reason) or display.escaped(reason)}"
        for reason, count in left_out.items()
    )
    return f" ({', '.join(counts)})" if left_out else ""


def opened_text(event: ReplayOpened) -> str:
    """Return where a replay begins and ends."""
    begins = f"from {display.clock(event.start_ms)}" if event.start_ms else "from the beginning"
    if event.start:
        begins = f"after {vector_text(event.start)}"
    if event.last:
        begins = f"with the last message of each topic, then {begins}"
    ends = f", up to {display.clock(event.until_ms)}" if event.until_ms else ""
    if event.until:
        ends = f", up to {vector_text(event.until)}"
    topic_filter = display.name(event.topic_filter or replayed_filter(event.filter))
    return f"replays {topic_filter} {begins}{ends}, for {display.name(event.filter)}"


def position_fields(event: ReplayOpened | ReplayReached) -> dict[str, object]:
    """Return the positions of an event of a replay for its JSON object, as text."""
    if isinstance(event, ReplayOpened):
        until = {"until": _texts(event.until)} if event.until else {}
        return {"start": _texts(event.start), **until}
    gap = {log: [*map(format_position, ends)] for log, ends in event.gap.items()}
    return {"through": _texts(event.through), **({"gap": gap} if gap else {})}


def _texts(vector: Mapping[str, Position]) -> dict[str, str]:
    return {log: format_position(at) for log, at in vector.items()}


def reached_text(event: ReplayReached) -> str:
    """Return what a replay has sent, and how far it has read."""
    read = f" through {vector_text(event.through)}" if event.through else ""
    read += left_out_text(event.left_out)
    parts = [f"replayed {display.count_of(event.sent, 'message')}{read}"]
    parts += [
        f"{vector_text({log: ends[0]})} to {vector_text({log: ends[-1]})} was gone unread"
        for log, ends in event.gap.items()
        if ends
    ]
    if event.state:
        parts.append(state_text(event.state))
    return f"{', '.join(parts)}, for {display.name(event.filter)}"
