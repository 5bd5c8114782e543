"""What is proven of a log: the parts that are whole, and those about which nothing can be said.

A log proves by its chain that no record is missing between two records. It cannot prove that it
ends with the last record that was acknowledged, nor what was in records that were given up. The
events LogEndUnproven and LogSalvaged say where that was so; all statements about it are written
here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from eventstore.display import clock, count_of, escaped, iso
from eventstore.format.node_events import LogEndUnproven, LogSalvaged

if TYPE_CHECKING:
    from eventstore.format.event_parsing import Event

REACHED: Final = "the log reaches the last record that was noted as acknowledged"
"""The statement about a start after a crash for which there is no doubt."""
NO_MARK: Final = (
    "whether the log ends with the last acknowledged record is not known: it was read without its "
    "watermark, log.mark in the data directory of the broker"
)
"""The statement about a log that is read without its data directory."""
UNSURE_SESSION: Final = "its subscriptions and messages are not certain"
UNSURE_STATE: Final = "sessions, subscriptions and retained messages may be missing or out of date"
"""Statements about a state behind lost records."""
SET_BACK: Final = " (the clock was set back)"
"""What follows a span of time that ends before it begins."""
SHOWN_AT_START: Final = 4
"""Maximum number of doubts about a log that a start shows."""
_SALVAGED: Final = "salvaged"
_DAMAGED: Final = "damaged"
_NOT_AUDITED: Final = "not_audited"
_SPANS: Final = 4
"""Maximum number of proven parts in a text."""
_BEFORE_START: Final = {
    "no_watermark": "the broker started without a watermark (log.mark)",
    "copy": "the broker started on a copy of a data directory",
    "restored": "the broker started on a data directory that was restored from {source}",
}
"""Values of LogEndUnproven.reason, and what happened."""
_NOW: Final = {
    "no_watermark": "there is no watermark (log.mark)",
    "copy": "this is a copy of a data directory",
    "restored": "this data directory was restored from {source}",
}
"""The same before a broker has started."""


class Doubt(NamedTuple):
    """A part of a log about which nothing can be said."""

    at: int
    """Record with the event about it; 0: none yet, the log ends there now."""
    reason: str
    """``salvaged``, ``damaged``, ``not_audited`` (behind damage), or LogEndUnproven.reason."""
    after: int
    """The last record before it."""
    until: int
    """The last record that was given up; ``after`` if the records have no place in the log."""
    from_ms: int
    """Time of record ``after``, Unix time in milliseconds; 0: there is none."""
    to_ms: int
    """Time of the first record after it; 0: there is none yet."""
    missing: int
    """Number of records that are known to be missing; 0: none is known."""
    source: str = ""
    """The backup, or the damaged directory."""
    seen_ms: int = 0
    """Time of the first start that knew of it; 0: there is none yet."""
    behind: int = 0
    """The last record from before that start."""
    settled: bool = False
    """Whether a checkpoint behind lost records repeated the state: it does not lack them."""


class LogProof:
    """The doubtful parts of a log, in order: a fold of its events."""

    __slots__ = ("_known", "doubts")

    def __init__(self) -> None:
        self.doubts: list[Doubt] = []
        self._known: dict[int, Sequence[int]] = {}
        """Record of a salvage -> LogSalvaged.known, if there are any."""

    def take(self, event: Event, sequence: int, time_ms: int) -> None:
        """Fold a LogSalvaged, LogEndUnproven or BrokerStarted; others say nothing about it."""
        if isinstance(event, LogEndUnproven):
            if event.salvaged:
                self.continued(event.end, event.salvaged, sequence, time_ms)
            self.doubts.append(unproven_end(event, sequence, time_ms))
        elif isinstance(event, LogSalvaged):
            if any(doubt.at == sequence for doubt in self.doubts):
                return  # a fold up to a record that was given up knew of it already
            after, times = event.first - 1, (event.begins_ms, event.ends_ms)
            self.salvage_knows(sequence, event.known)
            self.doubts.append(
                Doubt(
                    sequence,
                    _SALVAGED,
                    after,
                    event.end,
                    *times,
                    event.records,
                    event.source,
                    behind=event.until,
                )
            )
        elif event.e == "BrokerStarted":
            self.started(sequence, time_ms)

    def started(self, sequence: int, time_ms: int) -> None:
        """Fold the start of a broker: a doubt that has no end yet ends there."""
        for number, doubt in enumerate(self.doubts):
            if not doubt.seen_ms and sequence > doubt.behind:
                self.doubts[number] = doubt._replace(to_ms=doubt.to_ms or time_ms, seen_ms=time_ms)

    def salvage_knows(self, at: int, known: Sequence[int]) -> None:
        """Fold LogSalvaged.known of a salvage whose event is in record ``at``."""
        if known:
            self._known[at] = known

    def continued(self, end: int, salvaged: int, sequence: int, time_ms: int) -> None:
        """Fold a start on a log that ended at ``end``, before ``salvaged``: the end of a salvage.

        The hole of a later salvage was not there yet.
        """
        for number, doubt in enumerate(self.doubts):
            known = self._known.get(doubt.at, ())
            if is_continued(doubt.behind, known, end, salvaged, time_ms):
                self.doubts[number] = doubt._replace(behind=end, seen_ms=0)
        self.started(sequence, time_ms)

    @property
    def given_up(self) -> list[Doubt]:
        """The parts of the log that salvages gave up."""
        return [doubt for doubt in self.doubts if doubt.reason == _SALVAGED]

    def settle(self) -> None:
        """Note that the state behind all lost records was repeated."""
        self.doubts = [
            doubt._replace(settled=doubt.settled or doubt.reason == _SALVAGED)
            for doubt in self.doubts
        ]

    def unsure(self, what: str) -> str | None:
        """Return that ``what`` may lack events of lost records, and which; None: it lacks none."""
        lost = [
            cause(doubt) for doubt in self.doubts if doubt.reason == _SALVAGED and not doubt.settled
        ]
        return f"{what}: {', '.join(lost)}" if lost else None

    def salvaged_after(self, end: int) -> int:
        """Return the last record of a salvaged log if it is later than ``end``; otherwise 0."""
        return max((doubt.behind for doubt in self.doubts if doubt.behind > end), default=0)

    def lost_before(self, first: int) -> list[list[int]]:
        """Return the salvages in the records before ``first``, for LogCut.lost."""
        return [
            [doubt.after + 1, doubt.until, doubt.missing, doubt.from_ms, doubt.to_ms]
            for doubt in self.doubts
            if doubt.reason == _SALVAGED and doubt.at < first
        ]

    def cut(self, first: int) -> None:
        """Forget what was said in the records before ``first``: the log begins there."""
        self.doubts = [doubt for doubt in self.doubts if doubt.at >= first]


def is_continued(until: int, known: Sequence[int], end: int, salvaged: int, time_ms: int) -> bool:
    """Return whether a start on a log that ended at ``end``, before ``salvaged``, ends a salvage.

    ``until`` and ``known`` are those of its LogSalvaged; the start was recorded at ``time_ms``.
    """
    return end < until <= salvaged and time_ms not in known


def unproven_end(event: LogEndUnproven, at: int = 0, time_ms: int = 0) -> Doubt:
    """Return the doubt of an event in record ``at``; 0: no broker has recorded it yet."""
    missing = max(0, event.noted - event.end)
    times = (event.end_ms, time_ms)
    return Doubt(at, event.reason, event.end, event.end, *times, missing, event.source, time_ms)


def lost_before_cut(lost: Iterable[Sequence[int]]) -> list[Doubt]:
    """Return the doubts of LogCut.lost: the state since then was repeated."""
    return [
        Doubt(end, _SALVAGED, first - 1, end, from_ms, to_ms, records, settled=True)
        for first, end, records, from_ms, to_ms in lost
    ]


def damaged(record: int, from_ms: int, *, audited: bool = False) -> Doubt:
    """Return the doubt about a log from a damaged record on, behind a record of ``from_ms``.

    ``audited``: it ends an audit.
    """
    reason = _NOT_AUDITED if audited else _DAMAGED
    return Doubt(0, reason, record - 1, record, from_ms, 0, 0)


def doubts_of(stored: Iterable[Sequence[Any]]) -> list[Doubt]:
    """Return doubts that were stored as lists of their fields."""
    return [Doubt(*fields) for fields in stored]


def proven_spans(first_ms: int, last_ms: int, doubts: Iterable[Doubt]) -> list[tuple[int, int]]:
    """Return the proven parts between two times, Unix time in milliseconds."""
    spans, begin = [], first_ms
    for doubt in doubts:
        if doubt.from_ms:
            spans.append((begin, doubt.from_ms))
        if not doubt.to_ms:
            return spans
        begin = doubt.to_ms
    return [*spans, (begin, last_ms)]


def spans_text(spans: Iterable[tuple[int, int]], time: Callable[[int], str] = clock) -> str:
    """Return proven parts as text: from ... to ..., from ... to ..."""
    parts = [
        f"from {time(begin)} to {time(end)}{SET_BACK if end < begin else ''}"
        for begin, end in spans
    ]
    if len(parts) > _SPANS:
        parts[_SPANS - 1 :] = [f"and {len(parts) - _SPANS + 1:,} more parts"]
    return ", ".join(parts)


def statement(doubt: Doubt, time: Callable[[int], str] = clock) -> str:
    """Return what cannot be known, as a sentence; ``time`` writes the times."""
    return f"nothing can be said about {_extent(doubt, time)}: {cause(doubt)}"


def cause(doubt: Doubt) -> str:
    """Return why nothing can be said about a part."""
    if doubt.reason in (_DAMAGED, _NOT_AUDITED):
        later = ", and later ones are not audited" if doubt.reason == _NOT_AUDITED else ""
        return f"record {doubt.until:,} is damaged or missing{later}"
    if doubt.reason == _SALVAGED:
        first = doubt.after + 1
        which = (
            f"record {first:,}"
            if first == doubt.until
            else (f"records {first:,} to {doubt.until:,}")
        )
        given_up = f"{which} ({count_of(doubt.missing, 'record')})"
        of_source = f" of {escaped(doubt.source, 300)}" if doubt.source else ""
        return f"foldmq salvage gave up {given_up}{of_source}"
    known = (_BEFORE_START if doubt.at else _NOW).get(doubt.reason, escaped(doubt.reason))
    why = known.format(source=escaped(doubt.source, 300) or "a backup")
    if doubt.missing:
        last = doubt.after + doubt.missing
        return (
            f"{why}; the log ended at record {doubt.after:,}, the original had noted record "
            f"{last:,} as acknowledged: {count_of(doubt.missing, 'record')} or more are missing"
        )
    return (
        f"{why}; the log ended at record {doubt.after:,}, what was acknowledged after that is not "
        "known"
    )


def doubt_object(doubt: Doubt) -> dict[str, Any]:
    """Return a doubt as a JSON object."""
    return {**doubt._asdict(), "text": statement(doubt)}


def proof_object(
    spans: Iterable[tuple[int, int]], doubts: Iterable[Doubt]
) -> dict[str, list[dict[str, Any]]]:
    """Return the times for which a verdict holds, and its doubts, as fields of a JSON object."""
    return {
        "proven": [{"from": iso(begin), "to": iso(end)} for begin, end in spans],
        "not_proven": [doubt_object(doubt) for doubt in doubts],
    }


def _extent(doubt: Doubt, time: Callable[[int], str]) -> str:
    begin = time(doubt.from_ms) if doubt.from_ms else "the beginning"
    if not doubt.to_ms:
        return f"the time since {begin}"
    return f"{begin} to {time(doubt.to_ms)}"
