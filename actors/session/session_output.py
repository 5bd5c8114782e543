"""The output of a session to its client: encoded messages, those in memory, and the room for more.

New deliveries (:mod:`actors.session.delivery`) and repeated ones (:mod:`actors.session.redelivery`)
use it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

from actors.node.read_pause import ReadPause
from actors.session.delivery_encoder import DeliveryEncoder
from actors.session.session_messages import ClientConnection
from eventstore.format.positions import INDEX_BITS, Position
from eventstore.log.message_store import Message, MessageStore
from projections.state.session import SessionState, SubscriptionState
from protocol.mqtt.encoder import PublishEncoder

if TYPE_CHECKING:
    from actors.session.core import SessionCore
    from actors.session.node_context import NodeContext

_GATED_FACTOR: Final = 4
"""Bytes at the gate for all clients together, as a multiple of those for one client."""
_REACH: Final = 8
"""Number of records of the first read from the log."""
_REACH_GROWS: Final = 4
"""Factor by which this number grows with each read."""
_HELD_MESSAGES: Final = 65_536
"""Maximum number of messages held for a connected client whose window is full."""


class MessageBuffer:
    """Finds messages in memory, and holds those that will soon be sent to the client."""

    __slots__ = ("_held", "_held_bytes", "_reach", "_store")

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._held: dict[Position, Message] = {}
        self._held_bytes = 0
        self._reach = _REACH
        """Maximum number of records of the next read from the log."""

    def find(self, refs: Sequence[Position]) -> dict[Position, Message] | None:
        """Return the messages at these positions, or None if some must be loaded."""
        messages = self.find_first(refs)
        return messages if len(messages) == len(set(refs)) else None

    def find_first(self, refs: Sequence[Position]) -> dict[Position, Message]:
        """Return the messages at these positions, up to the first one that must be loaded."""
        messages: dict[Position, Message] = {}
        buffered, store = self._held, self._store
        for ref in refs:
            message = buffered.get(ref) or store.get(ref)
            if message is None:
                break
            messages[ref] = message
        return messages

    def to_load(self, refs: Sequence[Position]) -> list[Position]:
        """Return the first of these positions to load now: few at first, then more.

        So a client that reconnects need not wait until all its missed messages have been read.
        """
        records: set[int] = set()
        for count, ref in enumerate(refs):
            records.add(ref >> INDEX_BITS)
            if len(records) > self._reach:
                self._reach *= _REACH_GROWS
                return list(refs[:count])
        return list(refs)

    def not_held(self, refs: Sequence[Position]) -> list[Position]:
        """Return the positions whose messages are not held here."""
        buffered = self._held
        return [ref for ref in refs if ref not in buffered]

    def has_room(self, size: int, limit: int) -> bool:
        """Return whether messages of ``size`` bytes may be held; ``limit`` bounds all of them."""
        return self._held_bytes + size <= limit and len(self._held) < _HELD_MESSAGES

    def hold(self, messages: dict[Position, Message]) -> None:
        """Hold messages until they are released."""
        self._held.update(messages)
        self._held_bytes += sum(len(message.payload) for message in messages.values())

    def release(self, refs: Iterable[Position]) -> None:
        """Drop sent messages from memory."""
        if self._held:
            for ref in refs:
                message = self._held.pop(ref, None)
                if message is not None:
                    self._held_bytes -= len(message.payload)

    def restart_reading(self) -> None:
        """Begin with few messages again: the client has connected."""
        self._reach = _REACH


_EXPIRED_AT_ONCE: Final = 1024
"""Expired messages that are dropped at once."""
_EXPIRED_WITHIN: Final = 1024
"""Runs of a queue that are searched."""
_QUEUES_AT_ONCE: Final = 16
"""Queues of a session searched in one turn: a session may have thousands."""


class QueueExpiry:
    """Finds expired messages, in some queues at a time.

    The first messages of each queue are searched: messages that expire last are mostly behind them.
    """

    __slots__ = ("_next", "_searched")

    def __init__(self) -> None:
        self._next = 0
        """Number of the queue at which the search continues."""
        self._searched = 0
        """The last second in which no queue contained expired messages."""

    def search(
        self,
        state: SessionState,
        now: int,
        buffer: MessageBuffer,
        expire: Callable[[str, list[Position], int], None],
    ) -> list[Position]:
        """Pass expired messages to ``expire``: their filter, positions and payload bytes.

        Returns messages that have to be read from the log first, as their sizes must be known.
        """
        if self._searched >= now:
            return []
        budget, begin = _EXPIRED_AT_ONCE, self._next
        subscriptions = [*islice(state.waiting.values(), begin, begin + _QUEUES_AT_ONCE)]
        for subscription in subscriptions:
            queue = subscription.queue
            expired_refs = queue.expired(now, budget, _EXPIRED_WITHIN) if queue is not None else []
            if not expired_refs:
                continue
            messages = buffer.find_first(expired_refs)
            if not messages:
                return buffer.to_load(expired_refs)
            refs = [ref for ref in expired_refs if ref in messages]
            expire(subscription.filter, refs, sum(len(messages[ref].payload) for ref in refs))
            budget -= len(refs)
            if budget <= 0:
                return []
        self._next = begin + _QUEUES_AT_ONCE
        if len(subscriptions) < _QUEUES_AT_ONCE:
            self._next = 0
            if budget == _EXPIRED_AT_ONCE:
                self._searched = now
        return []


class SessionOutput:
    """Encodes and finds the messages of one session, and knows the room of its client."""

    __slots__ = ("_after_load", "_buffer", "_node", "_session", "encoder")

    def __init__(self, node: NodeContext, session: SessionCore) -> None:
        self._node = node
        self._session = session
        self._after_load: Callable[[], None] | None = None
        """What follows when messages have been read from the log; None: none are being read."""
        self._buffer: MessageBuffer | None = None
        """The messages of the session in memory; None: it needed none since its client came."""
        self.encoder: DeliveryEncoder | None = None
        """Encodes deliveries to an MQTT 5 client; None for other clients."""

    def send_queued(self) -> None:
        """Send queued messages for which the client has room."""
        raise NotImplementedError

    def send_queued_later(self) -> None:
        """Continue sending in another turn, after other work."""
        raise NotImplementedError

    def check_acks(self) -> None:
        """Redeliver messages that were not acknowledged within ``ack_wait``."""
        raise NotImplementedError

    def is_log_late(self, connection: ClientConnection) -> bool:
        """Return whether too many bytes wait at the gate."""
        limit, gated = self._node.delivery_limits.batch_bytes, connection.gated
        return gated > limit or (gated > 0 and self._node.journal.gated > _GATED_FACTOR * limit)

    def accepts_output(self, connection: ClientConnection) -> bool:
        """Return whether more may be sent to the client."""
        if not connection.writable or self._after_load is not None:
            return False
        if self.is_log_late(connection):
            # The log does not keep up. Queued messages cost no memory until it does.
            connection.starved = True
            return False
        return True

    def encode(
        self,
        messages: Sequence[Message],
        flags: tuple[int, bool],
        packet_ids: Sequence[int],
        *,
        dup: bool = False,
        of: SubscriptionState | None = None,
    ) -> bytes:
        """Encode queued or redelivered messages; ``flags`` are QoS and RETAIN.

        ``of`` is the subscription if there is only one: for shared subscriptions and retained
        messages.
        """
        if self.encoder is not None:
            now_ms = self._node.clock.steady_ms()
            return self.encoder.render_messages(messages, flags, packet_ids, now_ms, dup=dup, of=of)
        topics = [message.topic for message in messages]
        payloads = [message.payload for message in messages]
        prepared = PublishEncoder(topics, payloads, flags[0], retain=flags[1])
        return prepared.render(packet_ids, dup=dup)

    # Messages that are not in memory.

    @property
    def loading(self) -> bool:
        """True while messages are being read from the log."""
        return self._after_load is not None

    def _own_buffer(self) -> MessageBuffer:
        if self._buffer is None:
            self._buffer = MessageBuffer(self._node.messages)
        return self._buffer

    def find(self, refs: Sequence[Position]) -> dict[Position, Message] | None:
        """Return the messages at these positions, or None if some must be loaded."""
        return self._own_buffer().find(refs)

    def find_or_load(
        self, refs: Sequence[Position], then: Callable[[], None]
    ) -> dict[Position, Message] | None:
        """Return the messages at these positions; None: they are read first, then ``then`` called.

        Other messages wait meanwhile.
        """
        messages = self.find(refs)
        if messages is None:
            self.load(refs, then)
        return messages

    def load(self, refs: Sequence[Position], then: Callable[[], None]) -> None:
        """Read messages from the log, then call ``then``; other messages wait meanwhile."""
        self._after_load = then
        if self._session.connection is not None:
            self._session.connection.pause(ReadPause.LOADING)
        self._node.directory.load(self._session, self._own_buffer().not_held(refs))

    def release(self, refs: Iterable[Position]) -> None:
        """Drop sent messages from memory."""
        if self._buffer is not None:
            self._buffer.release(refs)

    def loaded(self, messages: dict[Position, Message]) -> None:
        """Store messages read from the log, and continue."""
        then, self._after_load = self._after_load, None
        if self._session.connection is not None:
            self._session.connection.resume(ReadPause.LOADING)
        self._own_buffer().hold(messages)
        if then is not None:
            then()
