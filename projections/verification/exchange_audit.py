"""Compares the logs of one node: each must have the messages of the others that match its sessions.

``projections.verification.exchange_check`` checks the messages that a log took; this module finds
those that it should have taken.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from eventstore.display import name as shown
from eventstore.format import (
    INDEX_BITS,
    LOG_SESSION,
    Assigned,
    CheckpointCompleted,
    Followed,
    MessagePublished,
    MessagesCarried,
    Position,
    Released,
    TurnAssembler,
    expiries,
    format_position,
    from_runs,
    position,
)
from eventstore.log import messages_of
from eventstore.partitions import partition_of
from eventstore.reading import Progress, silent
from projections.audit import SUBSCRIPTION_EVENTS
from projections.state import SHARED_PART, SessionFold
from projections.stories import topic_of
from protocol.mqtt import FilterTrie, is_reserved_topic
from protocol.mqtt5 import SHARE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping

    from eventstore.format import Event, Record
    from eventstore.reading import LogSource
    from projections.state import SessionState, SubscriptionState

_NEVER = 1 << 62
_UNKNOWN = 1
"""Expiry of a message whose properties were not read."""
_KNOWN_TOPICS = 100_000


class LiveEffect(NamedTuple):
    """A message that took effect in a log, for the subscribers in all logs."""

    at: Position
    """Where it took effect."""
    ref: Position
    """Where it was published; only at QoS 2 a different position."""
    topic: str
    expires: int
    """Unix time in seconds at which it expires; 0: never."""


class AssignedEffect(NamedTuple):
    """A message that a shared subscription of a log assigned to another log."""

    at: Position
    ref: Position
    """Where it was published."""
    share: str
    """The shared subscription."""


class LiveEffects:
    """Finds the messages that take effect in the records of a log, in order.

    ``taker`` is the name of the log whose assigned messages are included.
    """

    def __init__(self, taker: str = "") -> None:
        self._member = LOG_SESSION + taker
        self._turns = TurnAssembler(anywhere=True)
        self._unreleased: dict[Position, tuple[str, int]] = {}
        self._begin: Position | None = None

    def take(self, record: Record) -> Iterator[LiveEffect | AssignedEffect]:
        """Yield the effects of the turns that end with a record."""
        for part in self._turns.take(record)[1]:
            base = position(part.sequence, 0)
            begin = self._begin = base if self._begin is None else self._begin
            for index, event in part.events():
                if isinstance(event, MessagePublished):
                    yield from self._published(part, event, base + index)
                elif isinstance(event, Assigned) and event.member == self._member:
                    for number, ref in enumerate(from_runs(event.refs)):
                        yield AssignedEffect(base + index + number, ref, event.session)
                elif isinstance(event, MessagesCarried):
                    for number, ref in enumerate(from_runs(event.refs)):
                        if ref < begin:
                            self._unreleased[ref] = topic_of(event, number), _UNKNOWN
                elif isinstance(event, Released) and not event.session.startswith(LOG_SESSION):
                    for number, ref in enumerate(from_runs(event.refs)):
                        known = self._unreleased.pop(ref, None)
                        if known is not None:
                            yield LiveEffect(base + index + number, ref, *known)

    def _published(
        self, record: Record, event: MessagePublished, at: Position
    ) -> Iterator[LiveEffect]:
        if event.session.startswith(LOG_SESSION) or not (event.qos or event.will):
            return
        blocks = record.blocks(event)
        expires = expiries(blocks, record.time_ms) if blocks else []
        for number in range(event.count):
            topic, until = topic_of(event, number), expires[number] if expires else 0
            if event.qos == 2 and not event.will:
                self._unreleased[at + number] = topic, until
            else:
                yield LiveEffect(at + number, at + number, topic, until)


class LogSubscriptions:
    """The filters of the sessions of a log as it grows.

    ``begin`` is the sequence of its first record: in a log that was cut, the filters are known only
    after its first checkpoint.
    """

    def __init__(self, begin: int = 1) -> None:
        self.known = begin <= 1
        self._whole = 0 if self.known else _NEVER
        self._folds: dict[str, SessionFold] = {}
        self._filters: dict[str, set[str]] = {}
        self._trie: FilterTrie[str] = FilterTrie()
        self._matched: dict[str, str] = {}
        self._shares: dict[str, Position] = {}
        """Shared subscription -> where it began."""

    def take(self, event: Event, at: Position, time_ms: int) -> None:
        """Process the next event."""
        if isinstance(event, CheckpointCompleted) and not self.known:
            self.known, self._whole = True, at
            for known in self._folds.values():
                known.whole = at
        if not isinstance(event, SUBSCRIPTION_EVENTS):
            return
        session = event.session
        if session not in self._folds:
            self._folds[session] = SessionFold(session, self._whole)
        fold = self._folds[session]
        fold.take(event, at, time_ms)
        state: SessionState | None = fold.state
        if session.startswith(SHARE):
            if state is None:
                self._shares.pop(session, None)
            else:
                self._shares.setdefault(session, at)
        wanted = {one.filter for one in state.active() if _matches(one)} if state else set()
        held = self._filters.get(session, set())
        if state is None:
            del self._folds[session]
        if wanted != held:
            self._change(session, held, wanted)

    def _change(self, session: str, held: set[str], wanted: set[str]) -> None:
        for gone in held - wanted:
            if not gone.startswith(SHARE):
                self._trie.remove(gone, session)
        for new in wanted - held:
            if not new.startswith(SHARE):
                self._trie.insert(new, session, f"{shown(new)} of {shown(session)}")
        self._filters[session] = wanted
        self._matched.clear()

    def has_share(self, share: str, before: Position) -> bool:
        """Return whether there is a shared subscription that began before a position."""
        return self._shares.get(share, _NEVER) < before

    def match(self, topic: str) -> str:
        """Return a filter that a topic matches, with its session; empty: there is none."""
        found = self._matched.get(topic)
        if found is None:
            if len(self._matched) >= _KNOWN_TOPICS:
                self._matched.clear()
            matching = () if is_reserved_topic(topic) else self._trie.match(topic)
            found = self._matched[topic] = next(iter(matching), "")
        return found


def _matches(held: SubscriptionState) -> bool:
    """Return whether a subscription matches topics, in this log."""
    return not held.options & SHARED_PART and not held.filter.startswith(LOG_SESSION)


class FollowedEnd(NamedTuple):
    """How much of another log a log has taken."""

    log: str
    through: int
    """The last record of the other log that was taken; 0: none."""
    last: int
    """The last record that the other log has."""


class ExchangeAudit(NamedTuple):
    """The extent of an audit of one log against the others."""

    due: int
    """Messages of other logs that matched a session."""
    ends: tuple[FollowedEnd, ...]


async def audit_exchange(
    log: str,
    logs: Mapping[str, LogSource],
    report: Callable[[int, str], None],
    progress: Progress = silent,
) -> ExchangeAudit:
    """Compare a log with those that it follows; ``logs`` are all, in the order of their numbers.

    ``report(sequence, what)`` is called for each message that the log should have taken in that
    record or before, and for each that it left out as expired before it had expired. Raises as
    ``LogSource.records``.
    """
    taker, numbers = logs[log], {name: number for number, name in enumerate(logs)}

    def is_home(share: str) -> bool:
        return partition_of(share, len(numbers)) == numbers[log]

    first = taker.begin <= 1
    origins = {
        other: _Origin(source, log, is_home, first=first)
        for other, source in logs.items()
        if other != log
    }
    subscriptions = LogSubscriptions(taker.begin)
    turns = TurnAssembler()
    with progress("comparing with the other logs", taker.last) as update:
        async for record in taker.records(taker.begin, taker.last):
            for part in turns.take(record)[1]:
                base = position(part.sequence, 0)
                for index, event in part.events():
                    if isinstance(event, MessagePublished) and event.origins:
                        origin = origins.get(event.session.removeprefix(LOG_SESSION))
                        if origin is not None:
                            origin.take(event.share, from_runs(list(event.origins)))
                    elif isinstance(event, Followed) and event.log in origins:
                        await origins[event.log].followed(event, part, subscriptions, report)
                    subscriptions.take(event, base + index, part.time_ms)
            update(record.sequence)
    ends = tuple(
        FollowedEnd(other, one.through >> INDEX_BITS, one.source.last)
        for other, one in origins.items()
    )
    return ExchangeAudit(sum(one.due for one in origins.values()), ends)


class _Origin:
    """One of the other logs, read along with the log that takes from it."""

    def __init__(
        self, source: LogSource, taker: str, is_home: Callable[[str], bool], *, first: bool
    ) -> None:
        self.source = source
        self._taker = taker
        self._is_home = is_home
        self._taken: Counter[tuple[str, Position]] = Counter()
        """Messages taken since the last position that was recorded, and the shared subscription
        that they were assigned to, if any."""
        self.through: Position = 0
        self.due = 0
        self._looks = first
        """Whether the messages before the next position are checked: not before the first position
        in a log that was cut."""
        self._effects = self._read()
        self._next: LiveEffect | AssignedEffect | None = None

    def take(self, share: str, refs: Iterable[Position]) -> None:
        """Note messages that were taken."""
        self._taken.update((share, ref) for ref in refs)

    async def _read(self) -> AsyncIterator[LiveEffect | AssignedEffect]:
        found = LiveEffects(self._taker)
        async for record in self.source.records(self.source.begin, self.source.last):
            for effect in found.take(record):
                yield effect

    async def followed(
        self,
        event: Followed,
        record: Record,
        subscriptions: LogSubscriptions,
        report: Callable[[int, str], None],
    ) -> None:
        """Compare what took effect up to a position with what was taken."""
        looks = self._looks and subscriptions.known
        await self._refute_expired(event, record, report)
        while True:
            effect = self._next or await anext(self._effects, None)
            self._next = effect
            if effect is None or effect.at > event.through:
                break
            self._next = None
            if not looks:
                continue
            if isinstance(effect, AssignedEffect):
                await self._assigned(effect, event.log, record, subscriptions, report)
                continue
            if effect.expires == _UNKNOWN:
                continue
            matched = subscriptions.match(effect.topic)
            if not matched:
                continue
            self.due += 1
            if not self._taken["", effect.ref] and not _has_expired(effect.expires, record):
                what = f"lacks the message {format_position(effect.ref)} of log {event.log}"
                report(record.sequence, f"{what}, which matches {matched}")
        for (share, ref), count in self._taken.items():
            if share and count:
                what = f"took the message {format_position(ref)} of log {event.log} for"
                report(record.sequence, f"{what} {shown(share)}, which did not get it")
        self._taken.clear()
        self.through, self._looks = event.through, True

    async def _assigned(
        self,
        effect: AssignedEffect,
        log: str,
        record: Record,
        subscriptions: LogSubscriptions,
        report: Callable[[int, str], None],
    ) -> None:
        """Compare a message that was assigned to the log with what was taken."""
        self.due += 1
        key = effect.share, effect.ref
        if self._taken[key]:
            self._taken[key] -= 1
            return
        begun = position(record.sequence - record.part, 0)
        if self._is_home(effect.share) and not subscriptions.has_share(effect.share, begun):
            return  # it no longer had members
        if _has_expired(await self._expiry(effect.ref), record):
            return
        what = f"lacks the message {format_position(effect.ref)} of log {log}"
        report(record.sequence, f"{what}, which was assigned to {shown(effect.share)}")

    async def _refute_expired(
        self, event: Followed, record: Record, report: Callable[[int, str], None]
    ) -> None:
        """Report messages that were left out as expired but had not expired."""
        for ref in from_runs(event.expired):
            if not _has_expired(await self._expiry(ref), record):
                what = f"did not take the message {format_position(ref)} of log {event.log}"
                report(record.sequence, f"{what} as expired, but it had not expired")

    async def _expiry(self, ref: Position) -> int:
        """Return the expiry of a message in Unix seconds; 0: never, 1: it is not in the log."""
        sequence = ref >> INDEX_BITS
        if sequence < self.source.begin:
            return _UNKNOWN
        async for record in self.source.records(sequence, sequence):
            for stored in messages_of(record):
                if stored.first <= ref < stored.first + len(stored.payloads):
                    return stored.message(ref - stored.first).expires
        return _UNKNOWN


def _has_expired(expires: int, record: Record) -> bool:
    """Return whether a message had expired when a record was written.

    The time of a record is the time of its first event; the others may be up to a second later.
    """
    return 0 < expires <= record.time_ms // 1000 + 1
