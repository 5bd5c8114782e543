"""Reads the stored projections without a broker, while one may be writing them."""

import base64
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

import orjson

from eventstore.errors import LostLog
from eventstore.format.positions import Position
from eventstore.format.records import GENESIS
from eventstore.log.record_reader import read_stored
from eventstore.nats.jetstream import read_bounds, request_stream
from eventstore.reading.log_source import LogSource
from eventstore.reading.polling import Polling
from eventstore.reading.progress import Progress, silent
from projections.state.digests import digest, digest_number, retained_digest
from projections.state.format import (
    GONE,
    HISTORY,
    KEY,
    MARK,
    MARK_KEY,
    RETAINED,
    SESSION,
    BadProjection,
    OtherVersion,
    ProjectionMark,
    StoredEntry,
    decode_entry,
    key_of,
    mark_of,
    retained_of,
    version_tag,
)
from projections.state.retained import RetainedMessage
from projections.state.session import SessionState
from projections.state.snapshot import decode_session
from protocol.errors import FoldmqError

_SECONDS = 10.0
_TIMEOUT = 30.0
_POLL = 0.05


class Unsettled(FoldmqError):  # noqa: N818 - named for the condition, as in eventstore.errors
    """The projections kept changing while they were read."""

    exit_code = 75

    def __init__(self) -> None:
        super().__init__("the projections keep changing: try again")


@dataclass(frozen=True, slots=True)
class StoredItem:
    """One session or retained message of the projections."""

    version: Position
    """Everything before this position is reflected."""
    digest: int


@dataclass(slots=True)
class StoredProjections:
    """The stored projections at the time of reading."""

    sessions: dict[str, StoredItem] = field(default_factory=dict)
    retained: dict[str, StoredItem] = field(default_factory=dict)
    torn: set[str] = field(default_factory=set)
    """Sessions whose stored parts have different versions."""
    damaged: list[int] = field(default_factory=list)
    """Sequences of messages that cannot be read."""
    mark: ProjectionMark | None = None
    useless: str | None = None
    """Reason for which a starting broker would fold the log from its beginning instead."""


class ProjectionReader:
    """Reads the projections of a node, which are stored beside its log."""

    def __init__(self, source: LogSource, node: str, progress: Progress = silent) -> None:
        self._source = source
        self._progress = progress
        self._stream = f"FOLDMQ_STATE_{node}"
        self._prefix = f"foldmq.state.{node}."
        self.projections = StoredProjections()
        """The projections read so far."""
        self._large: dict[str, dict[int, StoredEntry]] = {}
        self._tables: dict[int, dict[str, StoredItem]] = {
            SESSION: self.projections.sessions,
            RETAINED: self.projections.retained,
            HISTORY: {},
            KEY: {},
        }
        """By kind; histories of clients and keys of topics are not compared."""
        self._sum = 0
        self._digest = 0
        self._other_version = False

    async def all(self) -> StoredProjections:
        """Return all stored projections. Raises Unsettled or LogUnavailable."""
        stored = self.projections
        try:
            read_until, end = await self._bounds()
        except LostLog:
            stored.useless = "there are none"
            return stored
        polling = Polling(_POLL, _TIMEOUT)
        await self._read(read_until, end, again=False)
        while True:
            # Messages that were stored after their key was read have later sequences.
            read_until, (_, end) = end, await self._bounds()
            if end > read_until:
                await self._read(read_until + 1, end, again=True)
            elif not self._torn() or not self._source.live or polling.expired:
                break
            else:
                await polling.wait()
            if end > read_until and polling.expired:
                raise Unsettled
        self._finish()
        return stored

    async def one(self, name: str) -> StoredProjections:
        """Return the stored state of one session, and the mark."""
        stored = self.projections
        try:
            mark = await self._latest(MARK_KEY)  # first: the session may be newer, but not older
            entries = await self._parts(name)
        except LostLog:
            stored.useless = "there are none"
            return stored
        for data in (mark, *entries):
            if data is not None:
                self._take(0, data)
        self._digest = self._sum
        self._finish()
        return stored

    async def mark(self) -> ProjectionMark | None:
        """Return the mark; None if there is none that this version can read."""
        try:
            data = await self._latest(MARK_KEY)
            return None if data is None else _mark(decode_entry(data))
        except (BadProjection, LostLog):
            return None

    async def session(self, name: str) -> tuple[Position, SessionState | None]:
        """Return the current version and state of a session; None when it cannot be read."""
        entries = []
        try:
            entries = [decode_entry(data) for data in await self._parts(name)]
            state = decode_session(name, [orjson.loads(entry.body) for entry in entries])
        except (BadProjection, ValueError, KeyError, TypeError, IndexError):
            return (entries[0].version if entries else 0), None
        if not entries or entries[0].kind != SESSION:
            return 0, None
        return entries[0].version, state

    async def message(self, topic: str) -> RetainedMessage | None:
        """Return the current retained message of a topic; None if there is none or it is bad."""
        data = await self._latest(key_of(RETAINED, topic))
        try:
            entry = None if data is None else decode_entry(data)
        except BadProjection:
            return None
        return retained_of(entry) if entry is not None and entry.kind == RETAINED else None

    async def _bounds(self) -> tuple[int, int]:
        return await read_bounds(self._source.client, self._stream)

    async def _latest(self, key: str) -> bytes | None:
        """Return the last message of a key."""
        body = {"last_by_subj": self._prefix + key}
        method = f"STREAM.MSG.GET.{self._stream}"
        answer = await request_stream(self._source.client, self._stream, method, body, _SECONDS)
        if "error" in answer:
            return None
        return base64.b64decode(answer["message"].get("data") or "")

    async def _parts(self, name: str) -> list[bytes]:
        """Return the messages of a session, in order."""
        first = await self._latest(key_of(SESSION, name))
        if first is None:
            return []
        try:
            count = decode_entry(first).parts
        except BadProjection:
            return [first]
        keys = [key_of(SESSION, name, number) for number in range(1, count)]
        others = [await self._latest(key) for key in keys]
        return [first, *(data for data in others if data is not None)]

    async def _read(self, first: int, end: int, *, again: bool) -> None:
        doing, total = "reading the projections", end - first + 1
        with self._progress(doing, total, "messages") as update:
            async for sequence, data in read_stored(self._source.client, self._stream, first, end):
                removed = self._take(sequence, data)
                if removed is not None and again:
                    await self._forget(removed)
                update(sequence - first + 1)

    def _take(self, sequence: int, data: bytes) -> StoredEntry | None:
        """Read a message; return it if it says that a key was removed."""
        try:
            entry = decode_entry(data)
            message = retained_of(entry) if entry.kind == RETAINED else None
            if entry.kind == MARK:
                self.projections.mark = _mark(entry)
        except OtherVersion:
            self._other_version = True
            return None
        except (BadProjection, UnicodeDecodeError, struct.error):
            self.projections.damaged.append(sequence)
            return None
        self._digest = entry.digest
        if entry.kind == GONE:
            return entry
        if entry.kind in self._tables:
            self._drop(entry.kind, entry.name, entry.part)
            self._sum ^= version_tag(key_of(entry.kind, entry.name, entry.part), entry.version)
            if entry.parts > 1:
                self._large.setdefault(entry.name, {})[entry.part] = entry
            else:
                short = "0" if message is None else retained_digest(message)
                short = digest([entry.body]) if entry.kind == SESSION else short
                item = StoredItem(entry.version, digest_number(short))
                self._tables[entry.kind][entry.name] = item
        elif entry.kind != MARK:  # written by a later foldmq
            self.projections.damaged.append(sequence)
        return None

    def _drop(self, kind: int, name: str, part: int) -> None:
        """Forget the messages of a key."""
        held: StoredItem | StoredEntry | None = None
        if part == 0:
            held = self._tables[kind].pop(name, None)
        if held is None and kind == SESSION:
            held = self._large.get(name, {}).pop(part, None)
        if held is not None:
            self._sum ^= version_tag(key_of(kind, name, part), held.version)

    async def _forget(self, removed: StoredEntry) -> None:
        """Forget a removed key; the message does not contain its kind."""
        for kind in (SESSION,) if removed.part else self._tables:
            data = await self._latest(key_of(kind, removed.name, removed.part))
            if data is None or decode_entry(data).kind == GONE:
                self._drop(kind, removed.name, removed.part)

    def _torn(self) -> set[str]:
        return {
            name
            for name, parts in self._large.items()
            if parts and (name in self.projections.sessions or not _whole(parts.values()))
        }

    def _finish(self) -> None:
        stored = self.projections
        stored.torn = self._torn()
        for name, parts in self._large.items():
            if parts and name not in stored.torn:
                texts = [parts[number].body for number in sorted(parts)]
                stored.sessions[name] = StoredItem(parts[0].version, digest_number(digest(texts)))
        if self._other_version:
            stored.useless = "another version of foldmq wrote them"
        elif stored.damaged:
            stored.useless = "some of their messages are damaged"
        elif stored.mark is None:
            stored.useless = "they were never completed"
        elif stored.torn or self._sum != self._digest:
            stored.useless = "they are incomplete"


def _mark(entry: StoredEntry) -> ProjectionMark:
    """Return the mark in an entry. Raises BadProjection if it is invalid."""
    mark = mark_of(entry)
    try:
        sensible = type(mark.sequence) is int and mark.sequence > 0
        sensible = sensible and len(bytes.fromhex(mark.link)) == len(GENESIS)
    except (TypeError, ValueError):
        sensible = False
    if not sensible:
        raise BadProjection("the mark of the projections cannot be read")
    return mark


def _whole(parts: Iterable[StoredEntry]) -> bool:
    """Return whether these are all parts of one version of a session."""
    kinds = {(entry.version, entry.parts) for entry in parts}
    numbers = sorted(entry.part for entry in parts)
    return len(kinds) == 1 and numbers == list(range(kinds.pop()[1]))
