"""Compares the logs of one broker: each must have taken the messages that the others owe it.

A log owes another one the messages that match a subscription there, retained messages, and those
that its shared subscriptions assigned to it. ``projections.audit.exchange_check`` checks
what one log alone says about the messages that it took; this module reads the other logs beside it,
in one pass and with bounded memory.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from eventstore.display import name as shown
from eventstore.format.event_parsing import Event
from eventstore.format.events import LOG_SESSION, MessagePublished
from eventstore.format.node_events import CheckpointCompleted, Followed
from eventstore.format.positions import INDEX_BITS, Position, format_position, from_runs, position
from eventstore.format.records import Record
from eventstore.format.sealing import SealedBytes, first_sealed
from eventstore.format.turn_parts import TurnAssembler
from eventstore.log.message_store import Message, MessageStore
from eventstore.partitions import partition_of
from eventstore.reading.progress import Progress, silent
from projections.audit.exchange_check import ExchangeCheck
from projections.audit.other_log_replays import LogRecords, OtherLogReplays
from projections.audit.owed_messages import (
    UNKNOWN,
    ClearedTopics,
    MessageBatch,
    OwedMessages,
    RequiredReplay,
)
from projections.audit.rule_table import Rule, Violation
from projections.audit.subscription_spans import SUBSCRIPTION_EVENTS
from projections.state.session import SHARED_PART, SessionState, SubscriptionState
from projections.state.single_session import SessionFold
from protocol.mqtt.message_properties import expiry_of
from protocol.mqtt.shared_filters import SHARE
from protocol.mqtt.topic_trie import FilterTrie
from protocol.mqtt.topics import is_bridge_state, is_reserved_topic

_NEVER = 1 << 62
_KNOWN_TOPICS = 100_000


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
        self.match = lru_cache(_KNOWN_TOPICS)(self._match)
        """Returns a filter that a topic matches, with its session; empty: there is none."""
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
        filters = {held.filter for held in state.active() if _matches(held)} if state else set()
        held = self._filters.get(session, set())
        if state is None:
            del self._folds[session]
        if filters != held:
            self._change(session, held, filters)

    def _change(self, session: str, held: set[str], filters: set[str]) -> None:
        for ended in held - filters:
            if not ended.startswith(SHARE):
                self._trie.remove(ended, session)
        for new in filters - held:
            if not new.startswith(SHARE):
                self._trie.insert(new, session, f"{shown(new)} of {shown(session)}")
        self._filters[session] = filters
        self.match.cache_clear()

    def has_share(self, share: str, before: Position) -> bool:
        """Return whether there is a shared subscription that began before a position."""
        return self._shares.get(share, _NEVER) < before

    def _match(self, topic: str) -> str:
        if is_reserved_topic(topic) and not is_bridge_state(topic):
            return ""
        return next(iter(self._trie.match(topic)), "")


def _matches(held: SubscriptionState) -> bool:
    """Return whether a subscription matches topics, in this log."""
    return not held.options & SHARED_PART and not held.filter.startswith(LOG_SESSION)


_KEPT_BYTES: Final = 16 << 20
"""Bytes of messages of each other log in memory; further ones are read again."""
_RECORDS_AT_ONCE: Final = 32
_TOPICS: Final = 200_000
"""Topics of which the last retained message is known: twice as many as a broker remembers."""
_ROUNDED: Final = 2
"""Seconds by which the expiry of a copy may differ: it is rounded when it is taken and stored."""
_OF_TURN_MS: Final = 1000
"""How much later than its first event the last event of a record may be."""


class FollowedEnd(NamedTuple):
    """How much of another log a log has taken."""

    log: str
    through: int
    """The last record of the other log that was taken; 0: none."""
    last: int
    """The last record that the other log has."""
    pending: int
    """Messages behind ``through`` that are still to be taken."""


class ExchangeAudit(NamedTuple):
    """The extent of an audit of one log against the others."""

    due: int
    """Messages that other logs owed it."""
    compared: int
    """Messages that it took and that were compared with those of the other logs."""
    ends: tuple[FollowedEnd, ...]


async def audit_exchange(
    log: str,
    logs: Mapping[str, LogRecords],
    report: Callable[[Violation], object],
    progress: Progress = silent,
    ends: Mapping[str, int] | None = None,
) -> ExchangeAudit:
    """Compare a log with those that it follows; ``logs`` are all, in the order of their numbers.

    ``report`` is called with each violation of the rules EXCHANGE, COPY and REPLAY. ``ends`` are
    the last records that the logs are known to have now: a log cannot have taken later ones. Raises
    as ``LogRecords.records``.
    """
    taker = logs[log]
    audit = _TakerAudit(log, logs, report, ends or {})
    with progress("comparing with the other logs", taker.last) as update:
        async for record in taker.records(taker.begin, taker.last):
            await audit.take(record)
            update(record.sequence)
    return await audit.finish()


class _Copy(NamedTuple):
    """A message that was taken from another log."""

    at: Position
    ref: Position
    """Where it was published in the other log."""
    share: str
    qos: int
    batch: MessageBatch

    @property
    def content(self) -> Message:
        return self.batch.message(self.at)


class _Retained:
    """The last retained message of each topic as the log knows it: time of its record, log."""

    def __init__(self, floor_ms: int) -> None:
        self._floor_ms = floor_ms
        """Before this time there may have been others, which were cut off."""
        self._last: OrderedDict[str, tuple[int, int]] = OrderedDict()
        self._forgot = False

    def change(self, topic: str, version: tuple[int, int]) -> None:
        """Note a retained message, or its end."""
        self._last[topic] = max(version, self._last.get(topic, version))
        self._last.move_to_end(topic)
        if len(self._last) > _TOPICS:
            self._last.popitem(last=False)
            self._forgot = True

    def may_be_replaced(self, topic: str, version: tuple[int, int]) -> bool:
        """Return whether there is, or may be, a later one of the topic."""
        newest = self._last.get(topic)
        if newest is not None and version < newest:
            return True
        return version[0] <= self._floor_ms or (newest is None and self._forgot)


class _TakerAudit:
    """The audit of one log, which takes messages of the others."""

    def __init__(
        self,
        log: str,
        logs: Mapping[str, LogRecords],
        report: Callable[[Violation], object],
        ends: Mapping[str, int],
    ) -> None:
        self._log = log
        self._report = report
        self._taker = taker = logs[log]
        self._numbers = {name: number for number, name in enumerate(logs)}
        self._turns = TurnAssembler(anywhere=taker.begin > 1)
        self._check = ExchangeCheck(lambda sequence, what: self._tell(position(sequence, 0), what))
        self._own = OwedMessages()
        self.subscriptions = LogSubscriptions(taker.begin)
        self.retained: _Retained | None = None
        self._doubtful: dict[str, list[tuple[tuple[int, int], Violation]]] = {}
        """Violations by topic: none if an operator removed the retained message later."""
        self._origins = {
            other: _Origin(other, source, log, ends.get(other), first=taker.begin <= 1)
            for other, source in logs.items()
            if other != log
        }
        self.due = self.compared = 0
        self._logs, self._replays = logs, OtherLogReplays()

    async def take(self, record: Record) -> None:
        """Take the next record of the log."""
        if self.retained is None:
            cut = self._taker.begin > 1
            self.retained = _Retained(record.steady_ms + _OF_TURN_MS if cut else -1)
        self._check.take(record, record.events())
        number = self._numbers[self._log]
        for part in self._turns.take(record)[1]:
            for effect in self._own.of(part):
                if isinstance(effect, RequiredReplay) and effect.retain:
                    self.retained.change(effect.topic, (effect.time_ms + _OF_TURN_MS, number))
            base = position(part.sequence, 0)
            for index, event in part.events():
                at = base + index
                if isinstance(event, MessagePublished) and event.origins:
                    origin = self._origins.get(event.session.removeprefix(LOG_SESSION))
                    if origin is not None:
                        origin.took(part, event, at)
                elif isinstance(event, Followed) and event.log in self._origins:
                    await self._followed(self._origins[event.log], event, part, at)
                self.subscriptions.take(event, at, part.steady_ms)
                self._replays.take(event, at)

    async def finish(self) -> ExchangeAudit:
        """Do the remaining checks at the end of the log."""
        for doubts in self._doubtful.values():
            for _, violation in doubts:
                self._report(violation)
        await self._replays.compare(self._log, self._logs, self._report)
        ends = []
        for name, origin in self._origins.items():
            pending = 0
            async for left in origin.rest():
                pending += isinstance(left, RequiredReplay) and self._is_due(left)
            if not origin.source.begin > 1:  # otherwise its erasures may have been cut off
                for key, violation in origin.not_taken.items():
                    if key not in origin.erased:
                        self._report(violation)
            through = origin.through >> INDEX_BITS
            ends.append(FollowedEnd(name, through, origin.source.last, pending))
        return ExchangeAudit(self.due, self.compared, tuple(ends))

    def _tell(self, at: Position, what: str, rule: Rule = Rule.EXCHANGE) -> None:
        self._report(Violation(rule, at, what, node=self._log))

    def _is_due(self, message: RequiredReplay) -> bool:
        """Return whether the log has to take a message of its subscriptions as of now."""
        if not self.subscriptions.known:
            return False
        return bool(message.share or message.retain or self.subscriptions.match(message.topic))

    # A position in another log.

    async def _followed(
        self, origin: _Origin, event: Followed, record: Record, at: Position
    ) -> None:
        """Compare what took effect up to a position with what was taken."""
        looks = origin.looks and self.subscriptions.known
        whole = origin.begin_position <= origin.through + 1
        copies, origin.taken = deque(origin.taken), []
        uncompared = Counter((copy.share, copy.ref) for copy in copies)
        expired = frozenset(from_runs(event.expired))
        for ref in sorted(expired):
            if not _has_expired(await origin.expiry(ref), record):
                what = f"did not take the message {format_position(ref)} of log {origin.name}"
                self._tell(at, f"{what} as expired, but it had not expired")
        erased = frozenset(from_runs(event.erased))
        for ref in sorted(erased):
            await self._is_erased(origin, ref, at)
        number = self._numbers[origin.name]
        async for effect in origin.up_to(event.through):
            version = effect.time_ms, number
            if isinstance(effect, ClearedTopics):
                self._cleared(effect.topics, version)
                continue
            key = effect.share, effect.ref
            replaced = self.retained is not None and self.retained.may_be_replaced(
                effect.topic, version
            )
            if effect.retain and self.retained is not None:
                self.retained.change(effect.topic, version)
            if uncompared[key]:
                self.due += 1
                await self._took(origin, effect, copies, uncompared, replaced=replaced)
            elif looks and effect.ref not in expired and effect.ref not in erased:
                await self._lacks(origin, effect, record, at, replaced=replaced)
        read = origin.has_read(event.through)
        if origin.looks and whole and read:
            for copy in copies:
                if uncompared[copy.share, copy.ref] and (
                    copy.qos == 2 or copy.ref > origin.through
                ):
                    self._not_owed(origin, copy)
        if read and origin.link_of(event.through) not in (None, event.link):
            what = f"follows log {origin.name} up to {format_position(event.through)}"
            self._tell(at, f"{what}, but that record is another one")
        if origin.ends is not None and event.through >> INDEX_BITS > origin.ends:
            what = f"follows log {origin.name} up to {format_position(event.through)}"
            self._tell(at, f"{what}, but that log ends with record {origin.ends}")
        origin.through, origin.looks = max(event.through, origin.through), True

    async def _is_erased(self, origin: _Origin, ref: Position, at: Position) -> None:
        """Check that a message was sealed that was not taken as erased; its erasure may follow."""
        message = await origin.message(ref)
        if message is None:
            return
        sealed = [
            part for part in (message.payload, message.block) if isinstance(part, SealedBytes)
        ]
        what = f"did not take the message {format_position(ref)} of log {origin.name} as erased, "
        if sealed:
            violation = Violation(Rule.EXCHANGE, at, what + "but it was not", node=self._log)
            origin.not_taken.setdefault(sealed[0].key, violation)
        else:
            self._tell(at, what + "but it is not sealed")

    def _cleared(self, topics: Iterable[str], version: tuple[int, int]) -> None:
        """Note that retained messages were removed."""
        for topic in topics:
            if self.retained is not None:
                self.retained.change(topic, version)
            kept = [doubt for doubt in self._doubtful.get(topic, ()) if doubt[0] > version]
            if kept:
                self._doubtful[topic] = kept
            else:
                self._doubtful.pop(topic, None)

    async def _took(
        self,
        origin: _Origin,
        owed: RequiredReplay,
        copies: deque[_Copy],
        uncompared: Counter[tuple[str, Position]],
        *,
        replaced: bool,
    ) -> None:
        """Compare a message with its copy."""
        key = owed.share, owed.ref
        while copies and not uncompared[copies[0].share, copies[0].ref]:
            copies.popleft()
        place = next(number for number, copy in enumerate(copies) if (copy.share, copy.ref) == key)
        copy = copies[place]
        if place:
            what = f"took the message {format_position(owed.ref)} of log {origin.name}"
            self._tell(copy.at, f"{what} behind {format_position(copies[0].ref)}, which is later")
        del copies[place]
        uncompared[key] -= 1
        content = owed.content or await origin.message(owed.ref)
        if content is None:
            return
        self.compared += 1
        what = _difference(copy, owed, content)
        if what:
            subject = f"the message {format_position(owed.ref)} of log {origin.name} was taken with"
            self._tell(copy.at, f"{subject} another {what}", Rule.COPY)
        elif owed.retain and not owed.share and not copy.content.retain and not replaced:
            subject = (
                f"the message {format_position(owed.ref)} of log {origin.name}, which is retained"
            )
            self._doubt(
                origin, owed, Rule.COPY, copy.at, f"{subject}, was taken as one that is not"
            )

    async def _lacks(
        self, origin: _Origin, owed: RequiredReplay, record: Record, at: Position, *, replaced: bool
    ) -> None:
        """Report a message that was not taken, if it had to be."""
        what = f"lacks the message {format_position(owed.ref)} of log {origin.name}"
        if owed.share:
            self.due += 1
            home = partition_of(owed.share, len(self._numbers)) == self._numbers[self._log]
            begun = position(record.sequence - record.part, 0)
            if home and not self.subscriptions.has_share(owed.share, begun):
                return  # it no longer had members
            if not _has_expired(await origin.expiry(owed.ref), record):
                self._tell(at, f"{what}, which was assigned to {shown(owed.share)}")
            return
        matched = self.subscriptions.match(owed.topic) if owed.live and owed.topic else ""
        if not matched and (not owed.retain or replaced):
            return
        self.due += 1
        if owed.expires == UNKNOWN or _has_expired(owed.expires, record):
            return
        if matched:
            self._tell(at, f"{what}, which matches {matched}")
        else:
            what = f"{what}, which is retained on {shown(owed.topic)}"
            self._doubt(origin, owed, Rule.EXCHANGE, at, what)

    def _doubt(
        self, origin: _Origin, owed: RequiredReplay, rule: Rule, at: Position, what: str
    ) -> None:
        """Note a violation, unless an operator turns out to have removed the retained message.

        A broker may know that before it records that it has taken the removal.
        """
        violation = Violation(rule, at, what, node=self._log)
        if len(self._doubtful) >= _TOPICS:
            self._report(violation)
            return
        version = owed.time_ms, self._numbers[origin.name]
        self._doubtful.setdefault(owed.topic, []).append((version, violation))

    def _not_owed(self, origin: _Origin, copy: _Copy) -> None:
        """Report a message that was taken although it did not take effect there."""
        what = f"took the message {format_position(copy.ref)} of log {origin.name}"
        if copy.share:
            what += f" for {shown(copy.share)}, which did not get it"
        else:
            what += ", which did not take effect there since the position before"
        self._tell(copy.at, what)


class _Origin:
    """One of the other logs, read along with the log that takes from it."""

    def __init__(
        self, name: str, source: LogRecords, taker: str, ends: int | None, *, first: bool
    ) -> None:
        self.name = name
        self.source = source
        self.ends = ends
        """The last record that the log is known to have; None: not known."""
        self.taken: list[_Copy] = []
        """Messages that were taken since the last position."""
        self.through: Position = 0
        self.looks = first
        """Whether the messages before the next position are checked: not before the first position
        in a log that was cut."""
        self.begin_position = position(source.begin, 0)
        self._owed = OwedMessages(taker)
        self._turns = TurnAssembler(anywhere=True)
        self._records = source.records(source.begin, source.last)
        self._effects: deque[RequiredReplay | ClearedTopics] = deque()
        self._complete = source.begin - 1
        """The last record of the last complete turn."""
        self._links: dict[int, str] = {}
        """Of the records of that turn."""
        self._ended = source.last < source.begin
        self._store = MessageStore(_KEPT_BYTES)
        self.erased: set[int] = set()
        """Keys whose erasure was requested in the log."""
        self.not_taken: dict[int, Violation] = {}
        """For each key with messages that were not taken as erased what is wrong if they were not.
        """

    def took(self, record: Record, event: MessagePublished, at: Position) -> None:
        """Note messages that were taken."""
        batch = MessageBatch(record, event, at)
        for number, ref in enumerate(from_runs(list(event.origins))[: event.count]):
            self.taken.append(_Copy(at + number, ref, event.share, event.qos, batch))

    async def up_to(self, through: Position) -> AsyncIterator[RequiredReplay | ClearedTopics]:
        """Yield what takes effect up to a position."""
        while True:
            while self._effects and self._effects[0].at <= through:
                yield self._effects.popleft()
            if self._effects or self._complete >= through >> INDEX_BITS or not await self._read():
                return

    async def rest(self) -> AsyncIterator[RequiredReplay | ClearedTopics]:
        """Yield what takes effect behind the last position."""
        while True:
            while self._effects:
                effect = self._effects.popleft()
                if effect.at > self.through:
                    yield effect
            if not await self._read():
                return

    async def _read(self) -> bool:
        """Read the next record; return whether there is one."""
        record = None if self._ended else await anext(self._records, None)
        if record is None:
            self._ended = True
            return False
        parts = self._turns.take(record)[1]
        if parts:
            self._links = {part.sequence: part.link.hex() for part in parts}
            self._complete = parts[-1].sequence
        for part in parts:
            for raw in part.raw_events:
                if raw["e"] == "ErasureRequested":
                    self.erased.update(from_runs(raw["keys"]))
            self._effects += self._owed.of(part)
            for stored in self._owed.kept:
                self._store.add(stored)
        return True

    def has_read(self, through: Position) -> bool:
        """Return whether the log was read up to a position."""
        return self._complete >= through >> INDEX_BITS

    def link_of(self, at: Position) -> str | None:
        """Return the link of the record of a position; None: it is not in memory."""
        return self._links.get(at >> INDEX_BITS)

    async def message(self, ref: Position) -> Message | None:
        """Return a message; None: it was cut off."""
        message = self._store.get(ref)
        sequence = ref >> INDEX_BITS
        if message is None and self.source.begin <= sequence <= self.source.last:
            last = min(sequence + _RECORDS_AT_ONCE - 1, self.source.last)
            async for record in self.source.records(sequence, last):
                self._store.add_record(record)
                if record.sequence == sequence:
                    message = self._store.get(ref)
        return message

    async def expiry(self, ref: Position) -> int:
        """Return the expiry of a message in Unix seconds; 0: never, 1: it is not in the log."""
        message = await self.message(ref)
        return UNKNOWN if message is None else message.expires


def _difference(copy: _Copy, owed: RequiredReplay, content: Message) -> str:
    """Return what a copy does not have in common with its message; empty: nothing."""
    copied = copy.content
    if copied.topic != content.topic:
        return "topic"
    if not _are_equal(copied.payload, content.payload):
        return "payload"
    if copy.qos != (0 if owed.share else owed.qos):
        return "QoS"
    if copied.retain and (owed.share or not content.retain):
        return "RETAIN"
    if not _are_equal(_without_expiry(copied.block), _without_expiry(content.block)):
        return "properties"
    if bool(copied.expires) != bool(content.expires):
        return "expiry"
    return "expiry" if abs(copied.expires - content.expires) > _ROUNDED else ""


def _without_expiry(block: bytes) -> bytes:
    """Return a block of properties without the expiry, which changes while a message waits."""
    if isinstance(block, SealedBytes):
        remaining = block[first_sealed(block) :]
        return SealedBytes.of(remaining, block.key, opened=block.opened) if remaining else remaining
    return block if expiry_of(block) is None else block[5:]


def _are_equal(copy: bytes, content: bytes) -> bool:
    """Compare contents; of sealed ones, which have another key in each log, the sizes."""
    if isinstance(copy, SealedBytes) and isinstance(content, SealedBytes):
        return len(copy) == len(content)
    return copy == content


def _has_expired(expires: int, record: Record) -> bool:
    """Return whether a message had expired when a record was written.

    The time of a record is the time of its first event; the others may be up to a second later.
    """
    return 0 < expires <= record.steady_ms // 1000 + 1
