"""The outline of a log for the audit of its sessions: the limits and the runs of the broker."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final, NamedTuple

from eventstore.format.name_entries import is_token, place_of
from eventstore.format.positions import Position

NEVER: Final = 0xFFFF_FFFF
"""A session expiry that means: as long as the broker permits (MQTT 5, section 3.1.2.11.2)."""


class Limits(NamedTuple):
    """The limits and permissions that apply from a position on; None: not recorded."""

    at: Position
    time_ms: int
    max_queued_messages: int | None = None
    max_queued_bytes: int | None = None
    max_ack_pending: int | None = None
    session_expiry: float | None = None
    slow_reader_time: float | None = None
    max_topic_levels: int | None = None
    check_payload_format: bool | None = None
    denies: bool = True
    """Whether permissions may deny something."""

    @classmethod
    def read(cls, at: Position, values: Mapping[str, Any]) -> Limits:
        """Return the limits from the recorded ``values``."""
        numbers: dict[str, Any] = {
            name: value
            for name, value in values["limits"].items()
            if name in _LIMITS and isinstance(value, int | float)
        }
        return cls(at, values["time_ms"], **numbers, denies=values["denies"])

    def expiry_of(self, requested: int | None) -> float | None:
        """Return the seconds offline after which a session expires; 0: never, None: not known.

        ``requested`` is the session expiry that the client asked for, None if it asked for none.
        """
        limit = self.session_expiry
        if limit is None:
            return None
        if requested is not None and not (limit and limit < requested):
            limit = requested
        return limit if 0 < limit < NEVER else 0


_LIMITS: Final = frozenset(Limits._fields[2:-1])


class BrokerRun(NamedTuple):
    """One run of a broker, from its start on."""

    at: Position
    begins_ms: int
    before_ms: int
    """Time of the last record before the start; 0: not known."""


class ErasedSpan(NamedTuple):
    """The messages on a topic that were sealed under an erased key."""

    at: Position
    """Position of the request."""
    begin: Position
    end: Position
    """They were published from one position up to, and without, the other."""


_place: Final = attrgetter("at")


@dataclass(frozen=True, slots=True)
class LogOutline:
    """The outline of one log."""

    limits: tuple[Limits, ...] = ()
    """In order; limits equal to the ones before are left out, unless a hole is between them."""
    runs: tuple[BrokerRun, ...] = ()
    """In order."""
    stops: tuple[Position, ...] = ()
    """Positions at which a broker stopped or started, in order: no connection survives them."""
    ends_ms: int = 0
    """Time of the log's last record."""
    holes: tuple[Position, ...] = ()
    """The positions behind records that a salvage gave up, in order: states from before them are
    not known any more."""
    given_up: tuple[tuple[Position, Position], ...] = ()
    """The first position of records that a salvage gave up, and the one behind them."""
    begin: Position = 0
    """The first position of the log."""
    clocks: tuple[tuple[Position, int, int], ...] = ()
    """Where the clock jumped, in order: position, sum of the jumps from there on in milliseconds,
    and the time of the record before, without jumps; 0: not known."""

    erased: Mapping[str, Sequence[ErasedSpan]] = field(default_factory=dict)
    """By topic, what was erased of it, in order; by place, tokens of names that were erased."""

    def erased_at(self, topic: str, ref: Position) -> Position:
        """Return where the erasure of a message's content was requested; 0: it was not."""
        spans = self.erased.get(topic, ())
        return next((span.at for span in spans if span.begin <= ref < span.end), 0)

    def name_erased_at(self, name: str) -> Position:
        """Return where the erasure of a name was requested that has this token; 0: it was not."""
        spans = self.erased.get(place_of(name), ()) if is_token(name) else ()
        return spans[0].at if spans else 0

    def limits_at(self, at: Position) -> Limits | None:
        """Return the limits that apply at a position; None: they are not known."""
        number = bisect_right(self.limits, at, key=_place)
        limits = self.limits[number - 1] if number else None
        return None if limits is None or self.interrupted(limits.at, at) else limits

    def reached(self, at: Position, steady_ms: int, time_ms: int) -> bool:
        """Return whether a record, or one before it, has at least a time on the clock.

        ``steady_ms`` is the time of the record without the jumps of the clock.
        """
        jumped_ms = 0
        for place, jumped_behind_ms, before_ms in self.clocks:
            if place > at:
                break
            if before_ms and before_ms + jumped_ms >= time_ms:
                return True
            jumped_ms = jumped_behind_ms
        return steady_ms + jumped_ms >= time_ms

    def until(self, since: Position, at: Position, time_ms: int) -> int:
        """Return the time of an event, or the end of the run of ``since`` if that ended before."""
        number = bisect_right(self.runs, since, key=_place)
        if number < len(self.runs) and self.runs[number].at <= at:
            return self.runs[number].before_ms
        return time_ms

    def stopped_between(self, since: Position, at: Position) -> bool:
        """Return whether a broker stopped or started between two positions."""
        return _any_between(self.stops, since, at)

    def interrupted(self, since: Position, at: Position) -> bool:
        """Return whether records between two positions were given up."""
        return _any_between(self.holes, since, at)

    def gave_up(self, ref: Position, at: Position) -> bool:
        """Return whether a salvage before a position may have given up a message.

        Of one from before the log begins, it may have given up the repetition.
        """
        return any(
            end <= at and (ref < self.begin or first <= ref < end) for first, end in self.given_up
        )

    def settled_since(self) -> int:
        """Return the time since which the last run and its limits are unchanged.

        Records that were given up behind its start may contain another start: then it is the end.
        """
        newest = self.runs[-1] if self.runs else None
        if self.holes and (newest is None or newest.at < self.holes[-1]):
            return self.ends_ms
        starts = [] if newest is None else [newest.begins_ms]
        return max([*starts, self.limits[-1].time_ms if self.limits else 0])


def _any_between(places: Sequence[Position], since: Position, at: Position) -> bool:
    number = bisect_right(places, since)
    return number < len(places) and places[number] <= at
