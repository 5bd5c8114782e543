"""The fold of the destinations of a log: the cursor of each, and what it did not get."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Any, Final

from eventstore.format.destination_events import (
    NATS_DESTINATION,
    DestinationClosed,
    DestinationOpened,
    Forwarded,
    ForwardLost,
    ForwardRefused,
    OriginTaken,
)
from eventstore.format.event_parsing import entries
from eventstore.format.node_events import OperatorActed
from eventstore.format.positions import Position, from_runs, to_runs
from protocol.mqtt.topics import matches

ERASED: Final = "erased"
SKIPPED: Final = "skip"
"""Reasons of ForwardLost: not a loss, but what an operator wanted."""
_SPANS: Final = "otlp"
"""The kind of destinations that get no contents."""
PAUSE: Final = "pause_destination"
RESUME: Final = "resume_destination"
SKIP: Final = "skip_destination"
RETRY: Final = "retry_messages"
"""Actions of OperatorActed; the target is the name of the destination."""
_MOST_TAKEN: Final = 1000
"""Clients that bring messages of other logs; the one that brought none for longest is forgotten."""


@dataclass(slots=True)
class DestinationState:
    """A destination in the log."""

    kind: str
    run: Position
    """Position of the event that opened it."""
    after: Position
    """Position behind which its messages begin."""
    filters: list[str]
    digest: str
    by: str
    through: Position
    """Position up to which it has every message that was due to it."""
    received: Position = 0
    """Position up to which a receiver at QoS 2 has the messages; 0: there is none."""
    number: int = 0
    """Number of messages due up to ``through`` since it was opened."""
    paused: bool = False
    refused: int = 0
    """Number of messages that it refused, and has not stored since."""
    losses: int = 0
    """Number of ranges that were not sent to it, without what was erased or skipped."""
    retry: list[Position] = field(default_factory=list)
    """Refused messages that an operator wants to be sent again."""


class Destinations(dict[str, DestinationState]):
    """The destinations of a log by name, and how far it took messages from other logs."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: dict[str, OriginTaken] = {}
        """By client, the last one is the newest; without messages."""

    def fold(self, event: Any, at: Position) -> None:
        """Apply an event of a destination."""
        FOLDS[type(event)](self, event, at)

    def bridged(self, through: Position) -> None:
        """Apply a Bridged of an earlier version, which is the cursor of the bridge to NATS."""
        if not through:
            self.pop(NATS_DESTINATION, None)
        elif (state := self.get(NATS_DESTINATION)) is not None:
            state.through = through
        else:
            name = NATS_DESTINATION
            self[name] = DestinationState(name, through, through, ["#"], "", "bridge", through)

    def act(self, event: OperatorActed) -> None:
        """Apply what an operator did: a pause, its end, or a wish to send messages again."""
        state = self.get(event.target)
        if state is None:
            return
        if event.action in (PAUSE, RESUME):
            state.paused = event.action == PAUSE
        elif event.action == RETRY:
            state.retry = list(dict.fromkeys([*state.retry, *from_runs(event.refs)]))

    def receivers(self, topic: str) -> list[str]:
        """Return the destinations that may have contents of a topic, whatever their cursors say.

        A cursor is recorded after the messages arrived, and an attempt that failed may have
        delivered some. Destinations that the settings had before are not known.
        """
        return [
            name
            for name, state in self.items()
            if state.kind != _SPANS and any(matches(each, topic) for each in state.filters)
        ]

    def marks(self) -> list[list[Any]]:
        """Return the destinations for the mark of the projections."""
        origins = [["", *astuple(each)[:5]] for each in self.taken.values()]
        return [[name, *astuple(state)] for name, state in self.items()] + origins

    def load(self, marks: Iterable[Sequence[Any]]) -> None:
        """Replace the destinations by those of a mark. Raises TypeError if they do not fit."""
        self.clear()
        self.taken.clear()
        for name, *values in marks:
            if name:
                self[name] = DestinationState(*values)
            else:
                client, log, run, through, recorded_ms = values
                self.fold(OriginTaken(client, log, run, through, recorded_ms, [], []), 0)

    def repeated(self) -> list[DestinationOpened | Forwarded | OriginTaken]:
        """Return the events with which a checkpoint repeats the destinations."""
        events: list[DestinationOpened | Forwarded | OriginTaken] = [*self.taken.values()]
        for name, state in self.items():
            events.append(
                DestinationOpened(
                    *(name, state.kind, state.after, state.filters, state.digest, "repeated"),
                    state.by,
                    run=state.run,
                    paused=state.paused,
                    refused=state.refused,
                    losses=state.losses,
                    refs=to_runs(state.retry),
                )
            )
            events.append(
                Forwarded(name, state.through, received=state.received, number=state.number)
            )
        return events


def _opened(known_states: Destinations, event: DestinationOpened, at: Position) -> None:
    state = known_states.get(event.to)
    if state is not None and event.run == state.run:
        return  # repeated by a checkpoint
    before = state if state is not None and not event.run else None
    known_states[event.to] = DestinationState(
        *(event.kind, event.run or at, event.after, event.filters, event.digest, event.by),
        event.after,
        paused=before.paused if before is not None else event.paused,
        refused=before.refused if before is not None else event.refused,
        losses=before.losses if before is not None else event.losses,
        retry=before.retry if before is not None else from_runs(event.refs),
    )


def _forwarded(known_states: Destinations, event: Forwarded, _at: Position) -> None:
    state = known_states.get(event.to)
    if state is not None:
        state.through = event.through
        state.received, state.number = event.received, event.number
        if event.refs:
            stored = frozenset(from_runs(event.refs))
            remaining = [ref for ref in state.retry if ref not in stored]
            state.refused = max(0, state.refused - (len(state.retry) - len(remaining)))
            state.retry = remaining


def _refused(known_states: Destinations, event: ForwardRefused, _at: Position) -> None:
    state = known_states.get(event.to)
    if state is not None:
        refused = frozenset(from_runs(event.refs))
        remaining = [ref for ref in state.retry if ref not in refused]
        state.refused += entries(event) - (len(state.retry) - len(remaining))  # others are not new
        state.retry = remaining


def _lost(known_states: Destinations, event: ForwardLost, _at: Position) -> None:
    state = known_states.get(event.to)
    if state is not None:
        state.losses += event.reason not in (ERASED, SKIPPED)
        state.through = max(state.through, event.until)
        if state.received:
            state.received = max(state.received, state.through)


def _taken(known_states: Destinations, event: OriginTaken, _at: Position) -> None:
    origins = known_states.taken
    origins.pop(event.client, None)
    origins[event.client] = replace(event, refs=[], origins=[])
    if len(origins) > _MOST_TAKEN:
        del origins[next(iter(origins))]


def _closed(known_states: Destinations, event: DestinationClosed, _at: Position) -> None:
    known_states.pop(event.to, None)


FOLDS: Final[Mapping[type, Callable[[Destinations, Any, Position], None]]] = {
    DestinationOpened: _opened,
    Forwarded: _forwarded,
    ForwardRefused: _refused,
    ForwardLost: _lost,
    DestinationClosed: _closed,
    OriginTaken: _taken,
}
"""Type of event -> its fold."""
