"""Reads the messages that are due to a destination from the log, from its cursor on."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import TYPE_CHECKING

import structlog

from eventstore.errors import CutMeanwhile, LogUnavailable
from eventstore.format.positions import INDEX_BITS, position, sequence_of
from eventstore.format.sealing import SealedBytes
from eventstore.format.turn_parts import TurnAssembler
from eventstore.log.message_store import MessageStore, StoredMessages, messages_of
from eventstore.reading.log_source import open_log
from eventstore.reading.publications import (
    PublicationItem,
    Publications,
    Releases,
    known_content,
    publications_in,
    with_content,
)
from outbox.sink import OutboxMessage

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        AsyncIterator,
        Callable,
        Iterable,
        Iterator,
        Sequence,
    )
    from typing import Protocol

    from eventstore.format.positions import Position
    from eventstore.format.records import Record
    from eventstore.log.message_store import Message
    from eventstore.reading.log_source import LogSource
    from outbox.selection import Selection

    class DurableEnd(Protocol):
        """The end of the log, as far as it is on disk."""

        async def reach(self, sequence: int, seconds: float | None = None) -> int:
            """Wait until a record is on disk; return the sequence of the last such record.

            That may be an earlier one after some seconds, if given.
            """


_log = structlog.get_logger("foldmq")

_RECORDS_AT_ONCE = 64
_UNMATCHED_PAUSE = 0.02
"""Seconds until more is read after records with nothing due: each reading has its cost."""
_UNRELEASED = 8 * 1024 * 1024
"""Bytes of QoS 2 messages kept until they are released; others are read from the log again."""
_RETRY = 0.5
_CURSORS = frozenset({"Forwarded", "Followed"})
"""Events that only say how far something is: a turn with nothing else moves no cursor."""


_PUBLISHED = frozenset({"MessagePublished", "TurnPublished"})
_RELEASED = frozenset({"Released", "TurnReleased"})


class CursorLost(Exception):  # noqa: N818 - it is an answer, not an error
    """The log was cut beyond the position where the reader is; its first record is the argument."""


@dataclass(slots=True)
class LogPortion:
    """What a complete turn of the log has for a destination."""

    through: Position
    """The last position of the turn."""
    time_ms: int
    """Time of the turn's last record, Unix time in milliseconds."""
    messages: list[OutboxMessage] = field(default_factory=list)
    skipped: int = 0
    """Number of due messages that the destination may not have."""
    missing: list[tuple[Position, int]] = field(default_factory=list)
    """Releases of messages that the log no longer has: position and number of messages."""
    only_cursors: bool = False


class DueMessages:
    """The due messages of a log, in order, numbered from the cursor of their destination."""

    _quiet_seconds: float | None = None
    """Time without a new record after which an empty turn is read; None: none is."""
    _whole_turns = True
    """Whether events of turns are expanded only where messages may be due."""

    def __init__(self, source: LogSource, selection: Selection, end: DurableEnd) -> None:
        self._source = source
        self._selection = selection
        self._end = end
        self._unreleased = MessageStore(_UNRELEASED)
        self._number = 0
        self._matched = True
        """Whether messages were due since the last reading began."""
        self._problem = ""

    async def after(self, through: Position, number: int) -> AsyncIterator[LogPortion]:
        """Yield the turns behind a position; ``number`` messages were due up to it.

        Raises CursorLost when the log was cut beyond it, CorruptLog when the log is damaged.
        """
        self._number = number
        self._matched = True
        async for complete in self._turns(max(1, sequence_of(through + 1))):
            portion = await self._portion(complete, through)
            self._matched = self._matched or bool(portion.messages or portion.missing)
            yield portion

    async def _turns(self, sequence: int) -> AsyncGenerator[list[Record], None]:
        """Yield the complete turns from a record on; raises as :meth:`after`."""
        turns = TurnAssembler(anywhere=True)
        while True:
            if not self._matched:
                await asyncio.sleep(_UNMATCHED_PAUSE)
            end = await self._end.reach(sequence, self._quiet_seconds)
            if end < sequence:
                yield []
                continue
            stop = min(end, sequence + _RECORDS_AT_ONCE - 1)
            self._matched = stop < end  # what is far behind is read without pauses
            try:
                records = self._source.records(sequence, stop, whole_turns=self._whole_turns)
                async for record in records:
                    sequence = record.sequence + 1
                    complete = turns.take(record)[1]
                    if complete:
                        yield complete
                self._problem = ""
            except CutMeanwhile:
                await self._reopen()
                if sequence < self._source.begin:
                    raise CursorLost(self._source.begin) from None
            except LogUnavailable as error:
                await self._wait(error)

    async def messages_at(self, refs: Iterable[Position]) -> list[OutboxMessage]:
        """Return the messages at some positions in order, without those that were cut off."""
        positions = {*refs}
        while True:
            begin = self._source.begin
            present = {ref >> INDEX_BITS for ref in positions if ref >> INDEX_BITS >= begin}
            try:
                records = await self._source.some(present) if present else []
            except CutMeanwhile:
                await self._reopen()
            except LogUnavailable as error:
                await self._wait(error)
            else:
                return [
                    message
                    for record in records
                    for item in publications_in(record)
                    for message in _contents(item, record)
                    if message.position in positions
                ]

    async def _reopen(self) -> None:
        source = self._source
        while True:
            try:
                opened = await open_log(source.client, source.stream, source.where)
                self._source = replace(opened, content_key=source.content_key)
            except LogUnavailable as error:
                await self._wait(error)
            else:
                return

    async def _wait(self, error: LogUnavailable) -> None:
        if str(error) != self._problem:
            self._problem = str(error)
            _log.warning("the log cannot be read now", reason=self._problem)
        await asyncio.sleep(_RETRY)

    async def _portion(self, parts: list[Record], through: Position) -> LogPortion:
        portion = portion_of(parts)
        if portion.only_cursors:
            return portion
        here = MessageStore(1 << 62)
        for record in parts:
            if not _may_have_due(record, self._selection.is_due):
                continue
            record.expand()
            for item in publications_in(record, self._selection.is_due):
                if isinstance(item, StoredMessages):
                    self._unreleased.add(item)
                    here.add(item)
                    continue
                due = item.after(through)
                if isinstance(due, Publications):
                    self._take(due, portion)
                elif due is not None:
                    held = [self._held(ref, here) for ref in due.refs]
                    messages = [message for message in held if message is not None]
                    if len(messages) == len(held):
                        batches = with_content(due, messages)
                    else:
                        batches = iter(await self._content(due, here, portion))
                    for published in batches:
                        self._take(published, portion)
        return portion

    def _take(self, published: Publications, portion: LogPortion) -> None:
        selection, session = self._selection, published.session
        if not published.qos or session == selection.own:
            return
        may_have = selection.may_have if selection.is_restricted else None
        qos, retain, time_ms = published.qos, published.retain, published.time_ms
        jumped = (time_ms - published.steady_ms) // 1000
        columns = zip(
            published.positions,
            published.refs,
            published.topics,
            published.payloads,
            published.blocks or repeat(b""),
            published.expires or repeat(0),
            strict=False,
        )
        names: dict[bytes, str | None] = {}
        number, messages = self._number, portion.messages
        for at, ref, topic, payload, block, expires in columns:
            if topic in names:
                name = names[topic]
            else:
                decoded = topic.decode()
                name = names[topic] = decoded if selection.is_due(decoded) else None
            if name is None:
                continue
            number += 1
            if may_have is not None and not may_have(name):
                portion.skipped += 1
                continue
            if expires:
                expires += jumped
            key = 0
            if type(payload) is not bytes or type(block) is not bytes:
                key = _key_of(payload, block)
                payload, block = bytes(payload), bytes(block)
            messages.append(
                OutboxMessage(
                    at,
                    ref,
                    number,
                    time_ms,
                    name,
                    payload,
                    qos,
                    retain,
                    session,
                    block,
                    expires,
                    key,
                )
            )
        self._number = number

    async def _content(
        self, releases: Releases, here: MessageStore, portion: LogPortion
    ) -> list[Publications]:
        """Return released messages; those that the log no longer has are noted as missing."""
        store = MessageStore(1 << 62)
        unread = {ref for ref in releases.refs if self._held(ref, here) is None}
        while unread:
            try:
                await self._read(unread, store)
                break
            except CutMeanwhile:
                await self._reopen()
            except LogUnavailable as error:
                await self._wait(error)
        publications, missing = known_content(
            releases, lambda ref: self._held(ref, here) or store.get(ref)
        )
        portion.missing += [(place, 1) for place in missing]
        return publications

    def _held(self, ref: Position, here: MessageStore) -> Message | None:
        return self._unreleased.get(ref) or here.get(ref)

    async def _read(self, positions: set[Position], store: MessageStore) -> None:
        """Read messages from their records, or where the log repeats them since it was cut."""
        begin = self._source.begin
        present = {ref >> INDEX_BITS for ref in positions if ref >> INDEX_BITS >= begin}
        if present:
            for record in await self._source.some(present):
                store.add_record(record)
        removed = {ref for ref in positions if ref >> INDEX_BITS < begin}
        if not removed:
            return
        async for record in self._source.records_with((b"MessagesCarried",), lambda _: None):
            for stored in messages_of(record):
                self._unreleased.add(stored)  # adjacent messages will be needed next
                if any(0 <= ref - stored.first < len(stored.payloads) for ref in removed):
                    store.add(stored)


def portion_of(parts: list[Record]) -> LogPortion:
    """Return what a turn has for a destination, without messages."""
    return LogPortion(
        position(parts[-1].sequence + 1, 0) - 1,
        parts[-1].time_ms,
        only_cursors=all(raw["e"] in _CURSORS for record in parts for raw in record.raw_events),
    )


def _may_have_due(record: Record, is_due: Callable[[str], bool]) -> bool:
    """Return whether messages of a record may be due, whose events of turns may be whole.

    Only topics are looked at: where there are messages at QoS 2, or releases, it is true.
    """
    try:
        for raw in record.raw_events:
            kind = raw["e"]
            if kind in _RELEASED:
                return True
            if kind in _PUBLISHED and (
                raw["v"] != 1 or raw["qos"] == 2 or any(map(is_due, raw["topics"]))
            ):
                return True
    except (AttributeError, KeyError, TypeError):
        return True  # it is reported where the record is parsed
    return False


def _contents(item: PublicationItem, record: Record) -> Iterator[OutboxMessage]:
    """Yield messages whose content an item has, as messages that take effect where they are."""
    if isinstance(item, Releases):
        return
    if isinstance(item, StoredMessages):
        places: Sequence[Position] = range(item.first, item.first + len(item.topics))
        item = Publications(
            *(item.publishers[0], 2, item.retain, places, places, item.topics, item.payloads),
            *(record.time_ms, record.steady_ms, item.blocks, item.expires),
        )
    jumped = (item.time_ms - item.steady_ms) // 1000
    for number, at in enumerate(item.positions):
        expires = item.expires[number] if item.expires else 0
        payload, block = item.payloads[number], item.blocks[number] if item.blocks else b""
        yield OutboxMessage(
            *(at, at, 0, item.time_ms, item.topics[number].decode(), bytes(payload)),
            *(item.qos, item.retain, item.session, bytes(block)),
            expires + jumped if expires else 0,
            _key_of(payload, block),
        )


def _key_of(payload: bytes, block: bytes) -> int:
    """Return the number of the key under which a message is sealed; 0: it is not."""
    return next((part.key for part in (payload, block) if isinstance(part, SealedBytes)), 0)
