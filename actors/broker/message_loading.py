"""Reads messages from the log that sessions need and that are no longer in memory.

Many sessions may need messages at the same time: after a restart, or when the receivers of a busy
broker reconnect. Their requests share the reads of records, and a bounded number of records is read
at a time, so that neither the connection to NATS nor the event loop is overloaded.
"""

import asyncio
from collections import deque
from collections.abc import Sequence

import structlog

from actors.session.node_context import NodeContext
from actors.session.session import Session
from actors.session.session_messages import Loaded
from eventstore.errors import CorruptLog, LogUnavailable
from eventstore.format.positions import INDEX_BITS, Position
from eventstore.format.records import Record
from eventstore.log.message_store import Message, MessageStore, messages_of
from protocol.errors import FoldmqError

_log = structlog.get_logger("foldmq")

_RECORDS = 32
"""Maximum number of records read together."""
_REQUESTS = 256
"""Maximum number of requests that share one read."""
_UNTIL_DURABLE = 0.01
"""Seconds between checks whether records that are needed are on disk."""
_RETRY = 0.5


class _Request:
    """Messages that a session needs."""

    __slots__ = ("left", "messages", "session")

    def __init__(self, session: Session, refs: Sequence[Position]) -> None:
        self.session = session
        self.left = deque(refs)
        """Positions of the messages that are still to be read."""
        self.messages: dict[Position, Message] = {}


class MessageLoader:
    """Reads messages for the sessions of a broker, in the order of the requests.

    A session whose messages are in many records is served in steps, with other sessions in between.
    The broker fails if the log lacks a message that it should contain.
    """

    def __init__(self, node: NodeContext) -> None:
        self._node = node
        self._waiting: deque[_Request] = deque()
        self._runs = False

    def load(self, session: Session, refs: Sequence[Position]) -> None:
        """Read messages from the log; the session gets a ``Loaded`` message."""
        self._waiting.append(_Request(session, refs))
        if not self._runs:
            self._runs = True
            self._node.spawn_task(self._run())

    async def _run(self) -> None:
        try:
            while self._waiting and not self._node.failed.done():
                await self._step()
        except Exception as error:  # noqa: BLE001 - many sessions would wait for ever
            _log.error("messages not read", exc_info=error)
            self._node.fail(FoldmqError(f"messages cannot be read: {error!r}; this is a bug"))
        finally:
            self._runs = False

    async def _step(self) -> None:
        """Read some records, and pass the messages in them to the sessions."""
        node = self._node
        requests = self._first()
        begin, (sequences, parts) = node.state.begin, self._plan(requests)
        records: list[Record] | None = None
        try:
            if not sequences and any(request.left for request in requests):
                await asyncio.sleep(_UNTIL_DURABLE)
            else:
                records = await node.log.read_some(sequences) if sequences else []
        except LogUnavailable as error:
            _log.warning(
                "messages cannot be read",
                requests=len(requests) + len(self._waiting),
                error=str(error),
            )
            await asyncio.sleep(_RETRY)
        except FoldmqError as error:
            stopped = any(request.session.stopped for request in requests)
            if node.state.begin == begin and not stopped:
                node.fail(error)
                requests.clear()
            # Otherwise the log was cut meanwhile, and other records contain the messages now.
        if records is None:
            self._waiting.extendleft(reversed(requests))
            return
        await self._give(parts, records)
        for request in requests:
            if not request.left:
                node.tell_if_alive(request.session, Loaded(request.messages))
        unserved = [request for request in requests if request.left and request not in parts]
        self._waiting.extendleft(reversed(unserved))
        self._waiting.extend(request for request in parts if request.left)

    def _first(self) -> list[_Request]:
        """Remove and return the first requests, without those of sessions that have stopped.

        The successor of a session requests messages itself, and the log may have been cut since.
        """
        waiting = self._waiting
        requests = [waiting.popleft() for _ in range(min(len(waiting), _REQUESTS))]
        return [request for request in requests if not request.session.stopped]

    def _plan(
        self, requests: Sequence[_Request]
    ) -> tuple[set[int], dict[_Request, list[Position]]]:
        """Return the records to read now, and which messages of each request they contain.

        Records that are not on disk yet are left for a later step.
        """
        sequences: set[int] = set()
        durable = self._node.journal.durable
        parts: dict[_Request, list[Position]] = {}
        for request in requests:
            chosen: list[Position] = []
            for ref in request.left:
                carriers = self._node.state.carriers_of(ref >> INDEX_BITS)
                if not sequences.issuperset(carriers):
                    if max(carriers) > durable:
                        break
                    if sequences and len(sequences) + len(carriers) > _RECORDS:
                        break
                    sequences.update(carriers)
                chosen.append(ref)
            if chosen:
                parts[request] = chosen
        return sequences, parts

    async def _give(self, parts: dict[_Request, list[Position]], records: Sequence[Record]) -> None:
        """Add to the requests the messages that are in these records."""
        node, store = self._node, MessageStore(1 << 62)
        for record in records:
            stored = messages_of(record)
            store.put(record.sequence, stored)
            node.messages.put(record.sequence, stored)
            await asyncio.sleep(0)  # parsing a large record takes milliseconds
        for request, refs in parts.items():
            for ref in refs:
                message = store.get(ref) or node.messages.get(ref)
                if message is not None:
                    request.messages[ref] = message
                    request.left.popleft()
                elif not request.session.stopped:
                    node.fail(CorruptLog(ref >> INDEX_BITS, "lacks a message it should contain"))
                    return
                else:
                    break
