"""Destinations of the outbox: they are opened and closed at the start, and hold the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from eventstore.format.destination_events import (
    NATS_DESTINATION,
    DestinationClosed,
    DestinationOpened,
    ForwardLost,
)
from eventstore.format.node_events import Bridged
from eventstore.format.positions import INDEX_BITS, format_position, position

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from actors.limits.destination_options import DestinationOptions
    from actors.session.node_context import NodeContext
    from eventstore.format.positions import Position
    from projections.state.destinations import DestinationState
    from projections.state.node_state import Checkpoint

_log = structlog.get_logger("foldmq")


def open_destinations(node: NodeContext) -> None:
    """Record the destinations of the settings that the log does not have, and those removed."""
    recorded = node.state.destinations
    configured = {each.name: each for each in node.options.destinations}
    for name in [name for name in recorded if name not in configured]:
        # An old log has the cursor of the bridge as Bridged.
        opened = recorded[name].digest
        node.emit(DestinationClosed(name, "removed") if opened else Bridged(0))
        _log.info("destination closed", to=name, reason="removed")
    for name, options in configured.items():
        state = recorded.get(name)
        if state is not None and state.digest == options.digest:
            continue
        if state is not None:
            after, cause = state.through, "changed"
        else:
            oldest = position(node.log.first, 0) - 1
            after = oldest if options.begin == "oldest" else node.journal.last
            cause = "first"
        node.emit(
            DestinationOpened(
                *(name, options.kind, max(0, after), list(options.filters), options.digest),
                cause,
                "settings",
            )
        )
        _log.info("destination opened", to=name, cause=cause, after=format_position(after))


class DestinationHolds:
    """Decides how much of a cut destinations allow."""

    def __init__(self, node: NodeContext) -> None:
        self._node = node

    @property
    def wait(self) -> bool:
        """Whether publishers wait for a destination that holds a full log."""
        return any(each.when_full == "wait" for each, _ in self._configured())

    def allowed(
        self, cut: tuple[Checkpoint, str] | None, behind: Callable[[Checkpoint], int]
    ) -> tuple[Checkpoint, str] | None:
        """Return the allowed part of a wanted cut, or None.

        ``behind`` returns the size in bytes of the log from a checkpoint on.
        """
        if cut is None or not self._node.state.destinations:
            return cut
        newest, reason = cut
        bridge, to_nats = self._node.bridge, self._node.state.destinations.get(NATS_DESTINATION)
        # Only if that may permit the cut: each record with a cursor makes the log longer.
        if bridge is not None and to_nats is not None and _needs(to_nats, newest.begun):
            bridge.settle()
        first = self._node.log.first
        for checkpoint in reversed(self._node.state.checkpoints):
            if (
                first < checkpoint.begun >> INDEX_BITS
                and checkpoint.begun <= newest.begun
                and not any(
                    _needs(state, checkpoint.begun)
                    and not self._given_up(options, checkpoint, reason, behind(checkpoint))
                    for options, state in self._configured()
                )
            ):
                return checkpoint, reason
        return None

    def losses(self, first: int, reason: str) -> list[ForwardLost]:
        """Return the events for what destinations lose if the log begins with a record."""
        until = position(first, 0) - 1
        return [
            ForwardLost(name, state.through, until, _bound(options, reason))
            for name, state, options in self._all()
            if _needs(state, until + 1)
        ]

    def _given_up(
        self, options: DestinationOptions, checkpoint: Checkpoint, reason: str, behind: int
    ) -> bool:
        """Return whether a destination is further behind than its bounds permit."""
        if options.when_full == "wait":
            return False
        if reason == "keep_bytes" or 0 < options.max_behind_bytes <= behind:
            return True
        age = (self._node.clock.steady_ms() - checkpoint.time_ms) / 1000
        return age >= options.max_behind

    def _configured(self) -> Iterator[tuple[DestinationOptions, DestinationState]]:
        for _, state, options in self._all():
            if options is not None:
                yield options, state

    def _all(self) -> Iterator[tuple[str, DestinationState, DestinationOptions | None]]:
        configured = {each.name: each for each in self._node.options.destinations}
        for name, state in self._node.state.destinations.items():
            yield name, state, configured.get(name)


def _needs(state: DestinationState, begin: Position) -> bool:
    """Return whether a destination is not through with the log before a position."""
    return state.through + 1 < begin


def _bound(options: DestinationOptions | None, reason: str) -> str:
    if reason == "keep_bytes" or options is None:
        return "keep_bytes" if reason == "keep_bytes" else "max_behind"
    return "max_behind_bytes" if options.max_behind_bytes else "max_behind"
