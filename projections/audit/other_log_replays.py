"""Compares what replays sent of other logs with the messages there: the rule ``replay``.

A cursor in another log counts the messages that were sent and left out since the one before; as
many took effect there on matching topics. What a replay read of its own log is compared by
``replay_fold``.
"""

from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Mapping
from typing import NamedTuple, Protocol

from eventstore.display import name as shown
from eventstore.format.event_parsing import Event
from eventstore.format.events import ReplayOpened, ReplayReached
from eventstore.format.positions import INDEX_BITS, Position, position
from eventstore.format.records import Record
from eventstore.format.turn_parts import TurnAssembler
from eventstore.log.message_store import StoredMessages
from eventstore.reading.publications import Releases, publications_in
from projections.audit.rule_table import Rule, Violation
from projections.views.replay_view import place_text
from protocol.mqtt.replay_filters import replayed_filter
from protocol.mqtt.topics import matches


class LogRecords(Protocol):
    """A log that is read."""

    @property
    def begin(self) -> int:
        """Stream sequence of its first record."""

    @property
    def last(self) -> int:
        """Stream sequence of the last record to read."""

    def records(self, first: int, last: int) -> AsyncIterator[Record]:
        """Yield the records between two sequences, both included."""


class _Opened(NamedTuple):
    """A replay, and how far it has read each log."""

    topic_filter: str
    through: dict[str, Position]
    last: Mapping[str, Position]
    """Up to where only the last message of each topic is read, by log."""
    from_beginning: bool
    """Whether it begins at the beginning of the logs that ``through`` does not have."""


class _Step(NamedTuple):
    """What a replay read of another log between two cursors."""

    at: Position
    session: str
    topic_filter: str
    begin: Position | None
    """None: the beginning of the log."""
    through: Position
    counted: int
    """Number of messages that were sent or left out."""


class _ReplayedMessages:
    """Where messages that match a filter take effect in a log."""

    def __init__(self) -> None:
        self.places: list[Position] = []

    def between(self, begin: Position, through: Position) -> int:
        return bisect_right(self.places, through) - bisect_right(self.places, begin)


class OtherLogReplays:
    """What the replays of a log read of the others; ``take`` its events in order."""

    def __init__(self) -> None:
        self._opened: dict[tuple[str, str], _Opened] = {}
        self._steps: dict[str, list[_Step]] = {}

    def take(self, event: Event, at: Position) -> None:
        """Note an event of a replay."""
        if isinstance(event, ReplayOpened):
            self._opened[event.session, event.filter] = _Opened(
                event.topic_filter or replayed_filter(event.filter),
                {} if event.last else {**event.start},
                event.start if event.last else {},
                not event.start_ms and (event.last or not event.start),
            )
        elif isinstance(event, ReplayReached):
            opened = self._opened.get((event.session, event.filter))
            if opened is None:  # what comes before a cut is not known
                inner = replayed_filter(event.filter)
                opened = self._opened[event.session, event.filter] = _Opened(inner, {}, {}, False)
            for log, through in event.through.items():
                if log and len(event.through) == 1:
                    self._reached(opened, log, through, event, at)
                opened.through[log] = through

    def _reached(
        self, opened: _Opened, log: str, through: Position, event: ReplayReached, at: Position
    ) -> None:
        begin = opened.through.get(log)
        gap = event.gap.get(log)
        if gap:
            begin = max(gap[-1], gap[0] - 1 if begin is None else begin)
        is_known = begin is not None or opened.from_beginning
        if is_known and opened.topic_filter and (begin or 0) >= opened.last.get(log, 0):
            count = event.sent + sum(event.left_out.values())
            step = _Step(at, event.session, opened.topic_filter, begin, through, count)
            self._steps.setdefault(log, []).append(step)

    async def compare(
        self, node: str, logs: Mapping[str, LogRecords], report: Callable[[Violation], object]
    ) -> None:
        """Report the steps that read more or fewer messages than the other logs have.

        Raises as ``LogRecords.records``.
        """
        for log, steps in self._steps.items():
            source = logs.get(log)
            if source is None:
                continue
            by_filter, unknown, whole = await _messages(
                source, {step.topic_filter for step in steps}
            )
            for step in steps:
                begin = step.begin
                if begin is None and whole:
                    begin = 0
                if begin is None or begin + 1 < position(source.begin, 0):
                    continue  # what it read was cut off
                if step.through >> INDEX_BITS > source.last or unknown.between(begin, step.through):
                    continue
                there = by_filter[step.topic_filter].between(begin, step.through)
                if there != step.counted:
                    what = (
                        f"of {there:,} messages on {shown(step.topic_filter)} from "
                        f"{place_text(begin)} to {place_text(step.through)} of log {log}, "
                        f"{step.counted:,} were sent or left out"
                    )
                    report(Violation(Rule.REPLAY, step.at, what, session=step.session, node=node))


async def _messages(
    source: LogRecords, filters: set[str]
) -> tuple[dict[str, _ReplayedMessages], _ReplayedMessages, bool]:
    """Return where the messages that match each filter take effect, and those that may be lost.

    These are messages at QoS 2 whose content may have been cut off before they were read. The third
    result is whether the log was never cut.
    """
    cut = source.begin
    by_filter, unknown = {name: _ReplayedMessages() for name in filters}, _ReplayedMessages()
    topics: dict[Position, bytes] = {}
    released: list[tuple[Position, Position]] = []
    by_topic: dict[bytes, list[_ReplayedMessages]] = {}
    turns = TurnAssembler(anywhere=True)

    def add(topic: bytes, at: Position) -> None:
        if topic not in by_topic:
            text = topic.decode()
            by_topic[topic] = [places for name, places in by_filter.items() if matches(name, text)]
        for places in by_topic[topic]:
            places.places.append(at)

    async for record in source.records(source.begin, source.last):
        for part in turns.take(record)[1]:
            for raw in part.raw_events:
                if raw["e"] == "LogCut":
                    cut = max(cut, raw["first"])
            for item in publications_in(part):
                if isinstance(item, StoredMessages):
                    topics.update(enumerate(item.topics, item.first))
                elif isinstance(item, Releases):
                    for at, ref in zip(item.positions, item.refs, strict=True):
                        released.append((at, ref))
                        if topic := topics.pop(ref, None):
                            add(topic, at)
                else:
                    for at, topic in zip(item.positions, item.topics, strict=True):
                        add(topic, at)
    unknown.places = [at for at, ref in released if ref >> INDEX_BITS < cut]
    return by_filter, unknown, cut <= 1
