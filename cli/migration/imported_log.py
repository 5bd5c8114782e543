"""Writes the state of another broker as the log of a new data directory.

The log is one that has been cut, as retention cuts logs: it begins with a checkpoint, which repeats
sessions, retained messages and the messages that sessions wait for, and it has a LogCut with the
reason ``imported``. Its first record continues a link that is the SHA-256 of the imported file. So
the log states exactly what is known: the state at the import, and nothing about the time before.

Messages of sessions have positions in the records before the log's first one, which never existed.
"""

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from actors.maintenance.checkpoints import (
    StateEvent,
    repeat_messages,
    repeat_retained,
    repeat_session,
)
from actors.session.node_context import NEVER_EXPIRES
from cli.migration.mosquitto_database import (
    AWAITS_ACK,
    AWAITS_PUBCOMP,
    INCOMING_UNRELEASED,
    QUEUED,
    ClientMessage,
    ClientState,
    MosquittoDatabase,
    StoredMessage,
)
from eventstore.datadir import new_node_id
from eventstore.format.event_parsing import Event
from eventstore.format.events import API_SESSION, LOG_SESSION, NATS_SESSION
from eventstore.format.node_events import (
    CheckpointBegun,
    CheckpointCompleted,
    LogCut,
    RetainedSnapshot,
)
from eventstore.format.positions import MAX_INDEX, Position, position
from eventstore.format.records import encode_record, link_of
from eventstore.log.message_store import Message
from eventstore.log.watermark import Watermark
from eventstore.reading import fresh_log
from projections.state.filter_links import linked
from projections.state.node_state import NodeState
from projections.state.retained import RetainedMessage
from projections.state.session import InFlight, SessionState, SubscriptionState
from projections.state.waiting_queue import RETAIN_FLAG, WaitingQueue
from protocol.mqtt.message_properties import (
    MessageProperties,
    encode_message_properties,
)
from protocol.mqtt.shared_filters import SHARE, split_share
from protocol.mqtt.topics import is_reserved_filter, is_reserved_topic, matches

_RECORD_BYTES: Final = 1024 * 1024
"""Approximate size from which the next record is begun."""
_GROUP_QOS: Final = 2
_RESERVED_NAMES: Final = (SHARE, LOG_SESSION, API_SESSION, NATS_SESSION)


class ImportedState:
    """The state that a database of Mosquitto describes, in the terms of foldmq."""

    def __init__(self, database: MosquittoDatabase, now_s: int) -> None:
        """Translate the database; what has expired at ``now_s`` (Unix time) is left out."""
        self._now_s = now_s
        self._database = database
        self.node = NodeState()
        self.messages: dict[Position, Message] = {}
        """The messages that sessions wait for."""
        self.unreleased: set[Position] = set()
        """Those that become retained with their PUBREL."""
        self.counts: Counter[str] = Counter()
        """What was taken, and what had expired, by name."""
        self.left_out: Counter[str] = Counter()
        """What was not taken, by reason."""
        numbers = list(database.messages)
        self.begin = 2 + len(numbers) // MAX_INDEX
        """Stream sequence of the first record of the log."""
        self._refs = {
            number: position(1 + index // MAX_INDEX, index % MAX_INDEX)
            for index, number in enumerate(numbers)
        }
        for number in database.retained:
            self._retain(number)
        for client in database.clients.values():
            self._add_session(client)

    def _retain(self, number: int) -> None:
        message = self._database.messages[number]
        if self._is_over(message):
            self.counts["expired message"] += 1
        elif is_reserved_topic(message.topic):
            self.left_out["retained messages on topics reserved for the broker"] += 1
        elif message.payload:
            self.counts["retained message"] += 1
            self.node.retained.load(self._as_retained(number, message))

    def _as_retained(self, number: int, message: StoredMessage) -> RetainedMessage:
        return RetainedMessage(
            message.topic,
            message.payload,
            message.qos,
            self._refs[number],
            _block(message, self._now_s),
            message.expires,
            message.publisher,
        )

    def _is_over(self, message: StoredMessage) -> bool:
        return 0 < message.expires <= self._now_s

    def _add_session(self, client: ClientState) -> None:
        if 0 < client.expires <= self._now_s or client.expiry == 0:
            self.counts["expired session"] += 1
            return
        if client.name.startswith(_RESERVED_NAMES):
            self.left_out["sessions with client identifiers reserved for the broker"] += 1
            return
        state = SessionState(client.name, clean=False, generation=1, user=client.user)
        state.expiry = client.expiry
        closed_ms = self._database.saved_ms
        if client.expires and client.expiry:
            closed_ms = min(closed_ms, (client.expires - client.expiry) * 1000)
        state.closed_ms = closed_ms
        if client.expiry is not None or any(
            subscription[2:] != (0, 0) for subscription in client.subscriptions
        ):
            state.level = 5
        for subscription in client.subscriptions:
            if is_reserved_filter(split_share(subscription.filter)[1]):
                self.left_out["subscriptions to topics reserved for the broker"] += 1
                continue
            held = SubscriptionState(
                subscription.filter,
                subscription.qos,
                True,
                subscription.options,
                subscription.identifier,
            )
            state.subscriptions[subscription.filter] = held
            self.counts["subscription"] += 1
            if subscription.filter.startswith(SHARE):
                self._add_group(subscription.filter, closed_ms)
        for sent in client.messages:
            self._add_message(state, sent)
        state.last_pid = client.last_pid
        self.counts["session"] += 1
        self.node.load(state, 0)

    def _add_group(self, name: str, closed_ms: int) -> None:
        """Add the session of a shared subscription, as its first member does."""
        if name in self.node.sessions:
            return
        topic_filter = split_share(name)[1]
        group = SessionState(name, clean=False, generation=1, level=5, expiry=NEVER_EXPIRES)
        group.closed_ms = closed_ms
        group.subscriptions[topic_filter] = SubscriptionState(topic_filter, _GROUP_QOS)
        self.node.load(group, 0)

    def _add_message(self, state: SessionState, sent: ClientMessage) -> None:
        message = self._database.messages[sent.message]
        ref = self._refs[sent.message]
        if sent.incoming:
            if sent.qos == 2 and sent.state in INCOMING_UNRELEASED:
                self._keep(ref, message)
                state.own_inbound()[sent.pid] = ref
                if message.retain:
                    self.unreleased.add(ref)
                    retained = self._as_retained(sent.message, message)
                    self.node.retained.load_unreleased(state.session, [retained])
                self.counts["unfinished publication"] += 1
            return
        if not sent.qos:
            self.left_out["queued messages at QoS 0, which foldmq does not queue"] += 1
            return
        if sent.state == QUEUED and self._is_over(message):
            self.counts["expired message"] += 1
            return
        self._keep(ref, message)
        held = _subscription_of(state, sent, message.topic)
        flags = sent.qos | (RETAIN_FLAG if sent.retain else 0)
        if sent.pid and sent.state in AWAITS_ACK | AWAITS_PUBCOMP:
            releasing = sent.state in AWAITS_PUBCOMP
            table = state.own_releasing() if releasing else state.inflight
            table[sent.pid] = InFlight(ref, flags, held, state.closed_ms)
            held.outstanding += 1
            self.counts["unacknowledged message"] += 1
            return
        _queue(state, held, ref, flags, message)
        self.counts["queued message"] += 1

    def _keep(self, ref: Position, message: StoredMessage) -> None:
        self.messages[ref] = Message(
            message.topic.encode(),
            message.payload,
            _block(message, self._now_s),
            message.expires,
            message.retain,
            message.publisher,
        )


def _block(message: StoredMessage, now_s: int) -> bytes:
    """Return the properties of a message as foldmq keeps them: with the expiry first."""
    if not message.expires:
        return message.block
    remaining_seconds = max(0, message.expires - now_s)
    return encode_message_properties(MessageProperties(expiry=remaining_seconds)) + message.block


def _subscription_of(state: SessionState, sent: ClientMessage, topic: str) -> SubscriptionState:
    """Return the subscription through which a message was sent, which Mosquitto does not note.

    If none matches, it was removed or is shared: an inactive one then holds the message.
    """
    suitable = [
        subscription
        for subscription in state.subscriptions.values()
        if subscription.active
        and not subscription.filter.startswith(SHARE)
        and matches(subscription.filter, topic)
    ]
    if not suitable:
        return state.subscription(topic)
    return max(
        suitable,
        key=lambda held: (held.identifier == sent.subscription_identifier, held.qos >= sent.qos),
    )


def _queue(
    state: SessionState, held: SubscriptionState, ref: Position, flags: int, message: StoredMessage
) -> None:
    """Append a message to the queue in which the broker would have put it."""
    together = linked(state, held.filter)
    last_filter = next((name for name in reversed(state.waiting) if name in together), held.filter)
    held = state.subscriptions[last_filter]
    if held.queue is None:
        held.queue = WaitingQueue()
    state.queued += held.queue.extend([ref], flags, message.expires)
    state.own_waiting()[held.filter] = held
    held.queued_bytes += len(message.payload)
    state.queued_bytes += len(message.payload)


class _Records:
    """Collects events in records of limited size, and appends them to a log."""

    def __init__(self, log: fresh_log.FreshLog, node: str, time_ms: int, link: bytes) -> None:
        self._log = log
        self._node = node
        self._time_ms = time_ms
        self.link = link
        """Link of the last record."""
        self._events: list[Event] = []
        self._payloads: list[bytes] = []
        self._size = 0

    async def add(self, together: Sequence[StateEvent]) -> None:
        """Add events that must be in the same turn."""
        for event, payloads in together:
            self._events.append(event)
            if payloads:
                event.at = sum(map(len, self._payloads)) + sum(event.blocks)  # type: ignore[union-attr]
                self._payloads += payloads
        self._size += sum(event.bytes for event in together)
        if self._size > _RECORD_BYTES:
            await self.write()

    async def write(self) -> None:
        """Append a record with the events, if there are any."""
        if not self._events:
            return
        data = encode_record(
            previous=self.link,
            node=self._node,
            time_ms=self._time_ms,
            events=self._events,
            payloads=self._payloads,
        )
        self.link = link_of(data)
        await self._log.append(data)
        self._events, self._payloads, self._size = [], [], 0


async def write_imported_log(state: ImportedState, before: bytes, target: Path) -> None:
    """Write a new data directory with the state; ``before`` is the SHA-256 of the imported file.

    Raises DataDirError if the directory is not empty, NatsUnavailable or DiskFull if it cannot be
    written; it is then as it was.
    """
    time_ms = time.time_ns() // 1_000_000
    async with fresh_log.new_directory(target) as new:
        node = new_node_id()
        async with fresh_log.fresh_store(new, node) as client:
            log = await fresh_log.begin_log(client, node, state.begin)
            records = _Records(log, node, time_ms, before)
            await _write_state(records, state)
            cut = LogCut(state.begin, before.hex(), time_ms, "imported")
            await records.add([StateEvent(cut)])
            await records.write()
            await log.check_end(records.link)
        Watermark(new.path / "log.mark", fresh_log.log_names(node)[0]).write(
            log.sequence, records.link
        )
        fresh_log.finish_directory(new, node)


async def _write_state(records: _Records, state: ImportedState) -> None:
    """Write a checkpoint, and the messages that sessions wait for."""
    node = state.node
    await records.add([StateEvent(CheckpointBegun(1))])
    sessions = retained = 0
    for name in sorted(node.sessions.names()):
        events = repeat_session(node, name)
        sessions += len(events) > 0
        await records.add(events)
    for event in repeat_retained(node, sorted(node.retained.topics())):
        retained += event.event.count if isinstance(event.event, RetainedSnapshot) else 0
        await records.add([event])
    completed = CheckpointCompleted(1, position(state.begin, 0), sessions, retained)
    await records.add([StateEvent(completed)])
    for event in repeat_messages(sorted(state.messages.items()), state.unreleased):
        await records.add([event])
