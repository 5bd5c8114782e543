"""Writes the projections beside the log, in the background.

Each round writes the changes since the last one, retained messages first, each in its current state
and not before the log has it on disk; the histories of clients that have a session come last. A
round ends with the mark: everything up to its record is reflected. Work is done in slices of some
milliseconds with pauses several times as long, and a round is followed by a pause in proportion to
its cost. While the log grows fast the next round waits, since the same sessions will change again
and clients need the time; the part of the log that a restart must read remains bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

import orjson
import structlog

from actors.session.node_context import NodeContext
from eventstore.errors import LogUnavailable, LostLog
from eventstore.format.positions import INDEX_BITS, Position
from projections.state.format import (
    GONE,
    HISTORY,
    KEY,
    MARK,
    MARK_KEY,
    RETAINED,
    SESSION,
    ProjectionMark,
    StoredEntry,
    key_of,
    retained_body,
    version_tag,
)
from projections.state.loading import LoadedProjections
from projections.state.session_table import bound_of, text_of
from projections.state.snapshot import encode_session

if TYPE_CHECKING:
    from eventstore.log.keyed_store import KeyedStore

_log = structlog.get_logger("foldmq")

_ROUND_EVERY = 1.0
"""Minimum seconds from the end of a round to the next one."""
_SHARE = 10
"""A round takes at most one part in this many of the broker's time."""
_FAST = 1000
"""Entries per second from which the log grows fast."""
_TAIL, _LATEST = 200_000, 10.0
"""Maximum entries since the last round began, and seconds since it ended, for which a round waits.
A restart folds this number of entries in about a second."""
_SLICE, _SLICE_BYTES = 0.002, 1024 * 1024
_SLICE_SHARE = 6
"""Length of the pause after a slice, relative to the slice."""
_PRESSED = 4
"""Factor by which slices are longer while a cut waits; pauses are then no longer than slices."""
_POLL = 0.005
_UNCONFIRMED = 2000
"""Messages sent before their arrival is checked."""
_RETRY = 2.0
_FINISH = 10.0
"""Maximum seconds of the last round when the broker stops."""


class Unwritable(LogUnavailable):
    """Not all sent messages arrived."""


class _Changing(Protocol):
    """A part of the state that notes what has changed."""

    dirty: dict[str, Position] | None
    """Changed names with the version stored before, 0 for none; None: nothing is noted."""


class _Sent(NamedTuple):
    """A sent message, to be sent again if it does not arrive."""

    kind: int
    name: str
    before: Position
    """Version stored before, 0 for none."""


class Projector:
    """Updates the projections of a broker: first call ``start_from`` or ``begin``, then ``run``."""

    def __init__(self, node: NodeContext, store: KeyedStore) -> None:
        self._node = node
        self._now = node.clock.monotonic
        self._store = store
        self._digest = 0
        self._stored_digest = 0
        self._last = 0
        """Sequence of the last message known to be stored."""
        self._sent: list[_Sent] = []
        self._parts: dict[str, int] = {}
        self._marked: ProjectionMark | None = None
        self._offered: ProjectionMark | None = None
        self._unsure = False
        """Whether sent messages may not have arrived."""
        self._torn = False
        """Whether a session may be stored with parts of different versions."""
        self._void = True
        """Whether the stored projections are unusable."""
        self._finishing = False
        self.pressed: Callable[[], bool] = bool
        """Whether a cut of the log waits until the projections have caught up."""
        self.progress = 0
        """Increases with each write."""
        self._busy = 0.0
        self._begun = 0
        """Entries written when the last round began."""
        self.trouble: str | None = None
        """The reason why writing fails; None if it does not."""

    @property
    def marked(self) -> int:
        """The record up to which the projections reflect the log; 0 if not known."""
        return self._marked.sequence if self._marked is not None else 0

    def start_from(self, loaded: LoadedProjections) -> None:
        """Start from loaded projections, which equal the stored ones."""
        self._note_changes()
        self._marked = loaded.mark
        self._parts = loaded.parts
        self._digest = self._stored_digest = loaded.digest
        self._last = loaded.last
        self._void = False

    def begin(self) -> None:
        """Begin with empty projections: everything must be written."""
        self._note_changes()  # everything else is added before the first round
        self._marked = None
        self._parts = {}
        self._digest = self._stored_digest = 0
        self._sent = []
        self._void = True
        self._torn = False

    def _parts_of_state(self) -> dict[int, _Changing]:
        """Return the parts of the state by the kind of their entries, in the order of a round."""
        node, node_state = self._node, self._node.state
        return {
            KEY: node_state.keys,
            RETAINED: node_state.retained,
            SESSION: node_state,
            HISTORY: node.clients,
        }

    def _note_changes(self) -> None:
        """Note the changes from now on."""
        for part in self._parts_of_state().values():
            part.dirty = {}

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            try:
                if self._unsure:
                    await self._take_back()
                if self._void:
                    await self._store.open()
                    await self._store.clear()
                    self._last = await self._store.last()
                    await self._mark_all()
                    self._void = False
                await self.round()
                self._log_outage(None)
            except LostLog:
                self._log_outage("their stream is gone")
                self.begin()
                self._unsure = False
                await asyncio.sleep(_RETRY)
            except LogUnavailable as error:
                self._unsure = not self._void
                self._log_outage(str(error))
                await asyncio.sleep(_RETRY)
            else:
                await self._rest(max(_ROUND_EVERY, self._busy * _SHARE))

    async def _mark_all(self) -> None:
        """Count everything as changed, since nothing was ever written."""
        node_state = self._node.state
        names: dict[int, dict[str, Position]] = {RETAINED: {}, SESSION: {}}
        for kind, table in ((RETAINED, node_state.retained), (SESSION, node_state.sessions)):
            for part_names in table.parts():
                names[kind].update(dict.fromkeys(part_names, 0))
                await asyncio.sleep(0)
        names[KEY] = dict.fromkeys(node_state.keys.by_topic, 0)
        names[HISTORY] = dict.fromkeys((name for name, _ in self._node.clients.items()), 0)
        for kind, part in self._parts_of_state().items():
            part.dirty = names[kind] | dict.fromkeys(part.dirty or (), 0)

    async def _rest(self, seconds: float) -> None:
        """Pause for some time, and while the log grows fast; only briefly if a cut waits."""
        began = looked = self._now()
        before = self._node.journal.stats.entries
        while True:
            remaining = began + seconds - looked
            await asyncio.sleep(min(_ROUND_EVERY, remaining) if remaining > 0 else _ROUND_EVERY)
            now, entries = self._now(), self._node.journal.stats.entries
            is_fast = entries - before >= _FAST * (now - looked)
            looked, before = now, entries
            waits = is_fast and entries - self._begun < _TAIL and now - began < _LATEST
            if self.pressed() or (now - began >= seconds and not waits):
                return

    async def finish(self) -> None:
        """Update the projections at the end, if that does not take long; :meth:`run` has ended."""
        self._finishing = True
        with contextlib.suppress(LogUnavailable, LostLog, TimeoutError):
            async with asyncio.timeout(_FINISH):
                await self._finish()

    async def _finish(self) -> None:
        if self._unsure:
            await self._take_back()
        if not self._void:
            await self.round()

    def _log_outage(self, trouble: str | None) -> None:
        if trouble is not None and self.trouble is None:
            _log.warning("projections cannot be written: a restart takes longer", reason=trouble)
        elif trouble is None and self.trouble is not None:
            _log.info("projections are written again")
        self.trouble = trouble

    async def round(self) -> None:
        """Write the changes, then the mark. Raises LogUnavailable."""
        journal, parts = self._node.journal, self._parts_of_state()
        self._busy = 0.0
        self._begun = journal.stats.entries
        while (behind := journal.last_closed) is None:  # noqa: ASYNC110 - a turn goes on: rare
            await asyncio.sleep(_POLL)
        if self._marked is not None and behind[0] == self._marked.sequence:
            return
        # These contain all changes up to the last closed record that are not stored yet.
        changes: dict[int, dict[str, Position]] = {}
        for kind, part in parts.items():
            changes[kind], part.dirty = part.dirty or {}, {}
        try:
            for kind, changed in changes.items():
                await self._in_slices(changed, kind)
        finally:
            for kind, part in parts.items():  # unprocessed changes stay marked
                part.dirty = {**(part.dirty or {}), **changes[kind]}
        await self._mark(*behind)

    async def _in_slices(self, changed: dict[str, Position], kind: int) -> None:
        """Write changes, removing them from the dict when they are sent."""
        while changed:
            started, touched = self._now(), self._touched(kind)
            most = _SLICE * _PRESSED if self.pressed() else _SLICE
            unsent: dict[str, Position] = {}
            entries: list[tuple[StoredEntry, Position, int]] = []
            size, waits = 0, False
            while changed and self._now() - started < most and size < _SLICE_BYTES:
                name = next(iter(changed))
                if kind == SESSION and name in self._node.rebuilding:
                    # Events recorded for it since its failure are not in its state.
                    changed[name] = changed.pop(name)
                    waits = True
                    break
                before = unsent[name] = changed.pop(name)
                touched.pop(name, None)
                made = self._entries(kind, name)
                size += sum(len(entry.body) for entry in made)
                if not self._add(entries, kind, name, before, made):
                    del unsent[name]
            try:
                spent = self._now() - started
                await self._until_whole(self._node.journal.next_position)
                started = self._now()
                for entry, before, parts in entries:
                    if parts:  # the last message of its name, which now counts as sent
                        del unsent[entry.name]
                    await self._put(entry, kind, before, parts)
            finally:
                # Unsent changes remain to be written.
                changed.update(unsent)
            if len(self._sent) > _UNCONFIRMED:
                await self._confirm(self._marked or ProjectionMark(0, "", 0, 0))
            spent += self._now() - started
            self._busy += spent
            self.progress += 1
            share = 0 if self._finishing else 1 if self.pressed() else _SLICE_SHARE
            await asyncio.sleep(max(spent * share, _POLL if waits else 0.0))

    def _touched(self, kind: int) -> dict[str, Position]:
        touched = self._parts_of_state()[kind].dirty
        return touched if touched is not None else {}

    def _entries(self, kind: int, name: str) -> list[StoredEntry]:
        """Return the messages of a session, topic or client in its current state."""
        if kind == RETAINED:
            return self._retained(name)
        if kind == KEY:
            held = self._node.state.keys.by_topic.get(name)
            return [] if held is None else [StoredEntry(KEY, name, held.changed, 0, held.encode())]
        return self._session(name) if kind == SESSION else self._history(name)

    def _retained(self, topic: str) -> list[StoredEntry]:
        message = self._node.state.retained.get(topic)
        if message is None:
            return []
        keys = self._node.log.keys
        body = retained_body(message, None if keys is None else keys.key)
        return [StoredEntry(RETAINED, topic, message.ref, 0, body)]

    def _history(self, name: str) -> list[StoredEntry]:
        node = self._node
        if name not in node.clients:  # dropped, because others changed later
            return []
        history = node.clients.find(name)
        if name not in node.state.sessions:
            history.saved = 0
            return []
        history.saved = node.journal.next_position
        return [StoredEntry(HISTORY, name, history.saved, 0, history.encode())]

    def _session(self, name: str) -> list[StoredEntry]:
        sessions = self._node.state.sessions
        frozen = sessions.frozen(name)
        if frozen is not None:
            return [StoredEntry(SESSION, name, bound_of(frozen), 0, text_of(frozen))]
        state = sessions.live.get(name)
        if state is None:
            return []
        state.saved = self._node.journal.next_position
        parts = [orjson.dumps(part) for part in encode_session(state)]
        return [
            StoredEntry(SESSION, name, state.saved, 0, body, number, len(parts))
            for number, body in enumerate(parts)
        ]

    def _add(
        self,
        entries: list[tuple[StoredEntry, Position, int]],
        kind: int,
        name: str,
        before: Position,
        made: list[StoredEntry],
    ) -> bool:
        """Add the messages that update a name, each with the version it replaces.

        The last one has the number of parts that are stored after it, the others have 0. Returns
        whether there are any.
        """
        if kind in (RETAINED, KEY) and made and made[0].version == before:
            return False
        parts = self._parts.get(name, 1) if kind == SESSION else 1
        count = max(1, len(made))
        obsolete = range(len(made), parts if before else 0)
        made += [StoredEntry(GONE, name, 0, 0, b"", number, parts) for number in obsolete]
        entries += [
            (entry, before if entry.part < parts else 0, count if entry is made[-1] else 0)
            for entry in made
        ]
        return bool(made)

    async def _until_whole(self, bound: Position) -> None:
        """Wait until the turns before a position are completely on disk."""
        journal = self._node.journal
        while journal.last_complete_turn < (bound - 1) >> INDEX_BITS:  # noqa: ASYNC110 - the disk sets the pace
            await asyncio.sleep(_POLL)

    async def _put(self, entry: StoredEntry, kind: int, before: Position, parts: int) -> None:
        """Send a message; ``parts``: as :meth:`_add` returns it.

        If the call is interrupted, the message may still arrive: :meth:`_take_back` must follow.
        """
        key = key_of(kind, entry.name, entry.part)
        is_gone = entry.kind == GONE
        digest = self._digest
        if before:
            digest ^= version_tag(key, before)
        if not is_gone:
            digest ^= version_tag(key, entry.version)
        entry.digest = digest
        data = entry.encode()
        self._sent.append(_Sent(kind, entry.name, before))
        self._digest = digest
        if kind == SESSION and parts:
            self._parts.pop(entry.name, None)
            if parts > 1:
                self._parts[entry.name] = parts
        try:
            await self._store.put(key, data, gone=is_gone)
        except BaseException:
            self._unsure = True
            self._torn = self._torn or not parts
            raise

    async def _mark(self, sequence: int, link: bytes) -> None:
        """Store the mark of a record, once all sent messages are stored."""
        node_state = self._node.state
        mark = ProjectionMark(
            sequence,
            link.hex(),
            len(node_state.sessions),
            len(node_state.retained),
            sorted({new for carriers in node_state.carried.values() for new in carriers}),
            [(each.number, each.begun, each.time_ms) for each in node_state.checkpoints],
            node_state.cuts[-1] if node_state.cuts else None,
            None
            if node_state.archived is None
            else (node_state.archived.at, node_state.archived.event),
            None,
            node_state.epoch,
            [(name, *place) for name, place in node_state.followed.items()],
            list(node_state.proof.doubts),
            node_state.destinations.marks(),
            node_state.keys.mark(),
            list(node_state.doubtful),
        )
        # The mark names checkpoints, cuts and repetitions that may be newer than the record.
        await self._until_whole(self._node.journal.next_position)
        await self._confirm(mark)

    async def _confirm(self, mark: ProjectionMark) -> None:
        """Store a mark after all sent messages: if it is stored, they are too."""
        entry = StoredEntry(MARK, "", mark.sequence << INDEX_BITS, self._digest, mark.body())
        self._offered = mark
        self._unsure = True
        if not await self._store.confirm(MARK_KEY, entry.encode(), self._last + len(self._sent)):
            raise Unwritable("not every message arrived")
        self._confirmed(mark)

    def _confirmed(self, mark: ProjectionMark) -> None:
        self._last += len(self._sent) + 1
        self._sent.clear()
        self._stored_digest = self._digest
        self._marked = mark
        self._offered = None
        self._unsure = False

    async def _take_back(self) -> None:
        """Check which sent messages arrived; the rest must be written again."""
        end = await self._store.last()
        arrived, sent = end - self._last, self._sent
        offered, self._offered = self._offered, None
        if self._torn:
            self.begin()
        elif offered is not None and arrived == len(sent) + 1:
            self._confirmed(offered)
        elif arrived == len(sent):
            self._sent = []
            self._last, self._stored_digest = end, self._digest
        elif not arrived and not self._parts:
            self._sent = []
            self._digest = self._stored_digest
            for message in reversed(sent):
                self._touched(message.kind)[message.name] = message.before
        else:
            # It is unknown which of them arrived: a broken connection may lose messages in the
            # middle, or another program wrote. Only writing all of them again is safe.
            self.begin()
        self._unsure = False
