"""The outbox: messages in the log that NATS does not have yet; the log is the queue of the bridge.

While NATS keeps up, publications are sent when their record is on disk (*live*). If it does not
keep up, or is unavailable, nothing is kept in memory: the bridge is *behind*, and reads unsent
messages from the log when NATS is available again. Its position is an event (``Bridged``), so a
restarted broker continues there: a publication of QoS 1 or 2 reaches NATS at least once, with the
same ``Nats-Msg-Id``.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from actors.bridge.to_nats import OutgoingMessages
from eventstore.errors import LogUnavailable
from eventstore.format.event_parsing import Event, entries
from eventstore.format.events import (
    LOG_SESSION,
    NATS_SESSION,
    MessagePublished,
    Released,
    SessionExpired,
    SessionOpened,
)
from eventstore.format.node_events import SessionSnapshot
from eventstore.format.positions import INDEX_BITS, Position, format_position, from_runs, position
from eventstore.format.turn_parts import TurnAssembler
from eventstore.log.message_store import MessageStore, StoredMessages, messages_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.bridge.subscriber_probes import SubscriberProbes
    from actors.limits.bridge_options import BridgeOptions
    from actors.session.node_context import NodeContext
    from eventstore.format.records import Record

_log = structlog.get_logger("foldmq")

_RECORDS_AT_ONCE = 64
_PAUSE = 0.05
"""Seconds between two checks for new records, or for room."""
_RETRY = 0.5
_SLICE = 0.005
"""Seconds of reading after which other work runs."""
_MAX_EARLY = 10_000
_MAX_EARLY_BYTES = 16 * 1024 * 1024
"""Maximum number of publications that wait until earlier ones are read from the log."""


class Outbox:
    """Sends QoS 1 and 2 messages of the log to NATS."""

    def __init__(
        self,
        node: NodeContext,
        options: BridgeOptions,
        flows: SubscriberProbes,
        send: Callable[[OutgoingMessages], None],
        room: Callable[[], bool],
        failed: Callable[[BaseException], None],
    ) -> None:
        """``room`` returns whether NATS accepts more now."""
        self._failed = failed
        self._users: dict[str, str | None] = {}
        """Users of sessions at the current record, if users have prefixes."""
        self._not_before = 0.0
        self._owed_until: Position = 0
        """Unsent messages at the time of a reconnect; they wait until ``_not_before``."""
        self._node = node
        self._options = options
        self._flows = flows
        self._send = send
        self._room = room
        self._task: asyncio.Task[None] | None = None
        self._live_from: int | None = None
        """Stream sequence from which publications are sent when the gate releases them; None:
        behind."""
        self._early: list[OutgoingMessages] | None = None
        """Publications released by the gate while earlier records are still being read."""
        self._early_bytes = 0
        self.last: Position = 0
        """The last position passed to the flows."""

    @property
    def behind(self) -> bool:
        """True while messages are read from the log."""
        return self._live_from is None or self._early is not None

    def takes(self, last: Position) -> bool:
        """Return whether messages at a position are sent when the gate releases them."""
        live_from = self._live_from
        return live_from is not None and last >> INDEX_BITS >= live_from

    def release_held(self, leaving: OutgoingMessages) -> None:
        """Send messages released by the gate, unless the bridge fell behind meanwhile."""
        live_from = self._live_from
        if live_from is None or leaving.since >> INDEX_BITS < live_from:
            return
        if self._early is not None:
            self._early.append(leaving)
            self._early_bytes += leaving.size
            if len(self._early) > _MAX_EARLY or self._early_bytes > _MAX_EARLY_BYTES:
                self.catch_up(self.last)
        elif self._room():
            try:
                self._send(leaving)
                self._flows.flush()
            except Exception as error:  # noqa: BLE001 - the gate goes on; the log has it
                self._failed(error)
                return
            self.last = leaving.through
        else:
            # Messages released together may have been sent in part: then all are sent again.
            self.catch_up(leaving.since - 1)

    def catch_up(self, through: Position, grace: float = 0.0) -> None:
        """Read messages after a position from the log, then continue live.

        They are not sent before ``grace`` seconds have passed: subscribers, including streams, may
        not have reconnected yet.
        """
        self.stop()
        self._not_before = self._node.clock.monotonic() + grace
        self._owed_until = self._node.journal.last
        self.last = through
        work = self._catch_up(through)
        self._task = asyncio.get_running_loop().create_task(work, name="bridge")
        self._task.add_done_callback(self._ended)

    def stop(self) -> None:
        """Send nothing more and keep nothing in memory: unsent messages are in the log."""
        self._live_from = None
        self._early = None
        self._early_bytes = 0
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def settled(self) -> Position:
        """Return the position up to which everything was sent to NATS."""
        oldest = self._flows.oldest()
        return self.last if oldest is None else oldest - 1

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    async def _catch_up(self, through: Position) -> None:
        node, journal = self._node, self._node.journal
        sequence = self._read_from(through)
        turns = TurnAssembler(anywhere=True)
        while True:
            if sequence < node.state.begin:
                if sequence + 1 < node.state.begin:
                    _log.warning(
                        "messages not sent to NATS were deleted from the log",
                        position=format_position(through),
                        begins=node.state.begin,
                    )
                sequence, turns = node.state.begin, TurnAssembler(anywhere=True)
            last = min(journal.last_complete_turn, sequence + _RECORDS_AT_ONCE - 1)
            stop = self._live_from
            if stop is not None:  # but a turn that began before it is read to its end
                last = min(last, sequence if turns.rest() else stop - 1)
            if sequence > last:
                if not turns.rest() and self._go_live(sequence):
                    return
                await asyncio.sleep(_PAUSE)
                continue
            try:
                with node.retention.cuts_suspended():
                    if sequence < node.state.begin:
                        continue
                    records = [record async for record in node.log.read(sequence, last)]
            except LogUnavailable:
                records = []
            self._check_task()
            if not records:
                await asyncio.sleep(_RETRY)
            for record in records:
                for part in turns.take(record)[1]:
                    if stop is None or part.sequence < stop:
                        await self._send_record(part, through)
                sequence = record.sequence + 1

    def _go_live(self, read: int) -> bool:
        """Switch to live messages if possible; all before record ``read`` were sent.

        Returns whether it switched: records appended before the switch must be read first.
        """
        if self._live_from is None:
            self._live_from = self._node.journal.end + 1
            self._early = []
        if read < self._live_from:
            return False
        early, self._early = self._early or [], None
        for leaving in early:
            self._send(leaving)
            self.last = leaving.through
        self._flows.flush()
        return True

    async def _send_record(self, record: Record, through: Position) -> None:
        """Send messages that take effect with the events of a record, after a position."""
        base = position(record.sequence, 0)
        messages: dict[Position, StoredMessages] | None = None
        begun = self._node.clock.monotonic()
        for index, event in record.events():
            at = base + index
            if self._options.prefixes:
                self._learn_user(event)
            if self._node.clock.monotonic() - begun > _SLICE:
                await asyncio.sleep(0)
                begun = self._node.clock.monotonic()
            if at + entries(event) - 1 <= through:
                continue
            if isinstance(event, MessagePublished) and event.qos and _is_client(event.session):
                if event.qos == 1 or event.will:
                    if messages is None:
                        messages = {stored.first: stored for stored in messages_of(record)}
                    await self._published(event, at, messages[at])
            elif isinstance(event, Released) and _is_client(event.session):
                await self._released(event, at)
        self.last = position(record.sequence + 1, 0) - 1

    async def _published(
        self, event: MessagePublished, at: Position, stored: StoredMessages
    ) -> None:
        prefix = self._prefix(event.session)
        if prefix is None:
            self._node.count_dropped("bridge_unknown_user", event.count, client=event.session)
            return
        await self._when_room(
            OutgoingMessages(
                event.session,
                prefix,
                event.qos,
                event.retain,
                stored,
                stored.size + sum(map(len, stored.blocks)),
                range(at, at + event.count),
                at,
                at + event.count - 1,
                expires=stored.expires,
            )
        )

    async def _released(self, event: Released, at: Position) -> None:
        """Send QoS 2 messages, which took effect when they were released."""
        refs = from_runs(event.refs)
        prefix = self._prefix(event.session)
        store = MessageStore(1 << 62)
        retained: set[Position] = set()
        records = await self._read(refs)
        self._check_task()
        for record in records:
            store.add_record(record)
            for index, published in record.events():
                if isinstance(published, MessagePublished) and published.retain:
                    first = position(record.sequence, index)
                    retained.update(range(first, first + published.count))
        messages = [(ref, message) for ref in refs if (message := store.get(ref)) is not None]
        if prefix is None:
            self._node.count_dropped("bridge_unknown_user", len(refs), client=event.session)
            return
        if len(messages) < len(refs):
            self._node.count_dropped("bridge_cut", len(refs) - len(messages), client=event.session)
        for number, (ref, message) in enumerate(messages, 1):
            size = len(message.payload) + len(message.block)
            blocks = [message.block] if message.block else ()
            await self._when_room(
                OutgoingMessages(
                    event.session,
                    prefix,
                    2,
                    ref in retained,
                    StoredMessages(ref, [message.topic], [message.payload], size, blocks),
                    size,
                    [ref],
                    at,
                    # The release counts as sent only when its last message is sent.
                    at - 1 if number < len(messages) else at + len(refs) - 1,
                    expires=[message.expires] if message.expires else (),
                )
            )

    async def _read(self, refs: list[Position]) -> list[Record]:
        """Return the records of messages, as soon as the log can be read.

        Deleted records are left out: only the bridge still needed them.
        """
        node_state, log = self._node.state, self._node.log
        while True:
            try:
                with self._node.retention.cuts_suspended():
                    return await log.read_some(
                        {
                            at
                            for ref in refs
                            for at in node_state.carriers_of(ref >> INDEX_BITS)
                            if at >= node_state.begin
                        }
                    )
            except LogUnavailable:
                await asyncio.sleep(_RETRY)

    async def _when_room(self, leaving: OutgoingMessages) -> None:
        clock = self._node.clock
        if leaving.since <= self._owed_until and (wait := self._not_before - clock.monotonic()) > 0:
            await asyncio.sleep(wait)
        while not self._room():  # noqa: ASYNC110 - the server sets the pace
            await asyncio.sleep(_PAUSE)
        self._send(leaving)
        self.last = leaving.through
        self._flows.flush()

    def _check_task(self) -> None:
        """End a task that was cancelled while it read.

        nats-py can lose a cancellation that arrives together with an answer.
        """
        if asyncio.current_task() is not self._task:
            raise asyncio.CancelledError

    # Users of sessions.

    def _read_from(self, through: Position) -> int:
        """Return the record to start with, at which the users of all sessions are known."""
        self._users = {}
        sequence = through >> INDEX_BITS
        if not self._options.prefixes:
            return sequence
        node_state = self._node.state
        before = [
            checkpoint.begun for checkpoint in node_state.checkpoints if checkpoint.begun <= through
        ]
        return max(before, default=0) >> INDEX_BITS or node_state.begin

    def _learn_user(self, event: Event) -> None:
        if isinstance(event, SessionOpened):
            self._users[event.session] = event.user
        elif isinstance(event, SessionSnapshot) and event.part == 0:
            self._users[event.session] = event.state.get("user")
        elif isinstance(event, SessionExpired):
            self._users.pop(event.session, None)

    def _prefix(self, session: str) -> str | None:
        """Return the prefix under which a session published; None if it is not known."""
        if not self._options.prefixes:
            return ""
        if session not in self._users:
            return None
        return self._options.prefix(self._users[session])


def _is_client(session: str) -> bool:
    """Return whether a session belongs to a client; NATS already gets the messages of others."""
    return session != NATS_SESSION and not session.startswith(LOG_SESSION)
