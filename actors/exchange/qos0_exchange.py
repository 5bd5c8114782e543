"""QoS 0 messages between the brokers of a node: they are in no log and are sent in batches."""

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import orjson
import structlog

from actors.exchange.member_reports import only_subscriber
from actors.session.node_context import NodeContext
from actors.session.outside_publisher import GateSink, OutsidePublisher
from actors.session.session_messages import Batch, Outgoing, Publication
from actors.sharing.shared_subscriptions import SharedSubscriptions
from eventstore.format.stored_properties import block_columns
from protocol.mqtt.packets import Publishes
from protocol.mqtt.topics import matches

_HEAD = struct.Struct(">II")
"""Sizes in bytes of the header and of the rest of a frame."""


class Qos0Messages(NamedTuple):
    """Messages of QoS 0; either all were published with RETAIN 1, or none."""

    topics: Sequence[bytes]
    payloads: Sequence[bytes]
    blocks: Sequence[bytes]
    """The properties of each; empty when none has any."""
    retain: bool
    log: str = ""
    """To the outbox: the client that published them."""
    share: str = ""
    """The only log and shared subscription that get them; empty: all matching ones do."""
    epoch: int = 0
    """Epoch of the leader that sends them; 0: there is no cluster."""


def encode_frame(messages: Qos0Messages) -> bytes:
    """Return the bytes of a frame."""
    topics, payloads, blocks, retain, log, share, epoch = messages
    distinct = {topic: number for number, topic in enumerate(dict.fromkeys(topics))}
    own, sizes, block_of = block_columns(blocks)
    header = orjson.dumps(
        (
            [topic.decode() for topic in distinct],
            [distinct[topic] for topic in topics],
            list(map(len, payloads)),
            sizes,
            block_of,
            retain,
            log,
            share,
            epoch,
        )
    )
    area = b"".join((*own, *payloads))
    return _HEAD.pack(len(header), len(area)) + header + area


def split_frames(data: bytes) -> list[bytes]:
    """Return the frames of a batch of complete ones."""
    frames = []
    at = 0
    while at < len(data):
        head, size = _HEAD.unpack_from(data, at)
        end = at + _HEAD.size + head + size
        frames.append(data[at:end])
        at = end
    return frames


def decode_frames(data: bytes) -> Iterator[Qos0Messages]:
    """Yield the messages of a batch; raises ValueError for one that is damaged."""
    at = 0
    while at < len(data):
        try:
            head, area_size = _HEAD.unpack_from(data, at)
            at += _HEAD.size
            header = orjson.loads(data[at : at + head])
            names, which, sizes, own, block_of, retain, log, share, epoch = header
            area = at + head
            at = area + area_size
            blocks = [b""]
            for size in own:
                blocks.append(data[area : area + size])
                area += size
            payloads = []
            for size in sizes:
                payloads.append(data[area : area + size])
                area += size
            topics = [name.encode() for name in names]
            spread: list[bytes] = []
            if own:
                spread = [blocks[number] for number in block_of or [1] * len(which)]
            if area != at or len(sizes) != len(which):
                raise ValueError("its columns are inconsistent")
            chosen = [topics[place] for place in which]
            yield Qos0Messages(chosen, payloads, spread, bool(retain), log, share, int(epoch))
        except (struct.error, TypeError, IndexError, AttributeError) as error:
            raise ValueError(str(error)) from None


_log = structlog.get_logger("foldmq")

_UNROUTED = 64 * 1024 * 1024
"""Bytes of waiting QoS 0 messages of other brokers above which further ones are dropped."""
_KEPT = 100
"""Bytes that such a message takes in addition to its topic, properties and payload."""
_SENT_AT_ONCE = 256 * 1024
"""Bytes of QoS 0 messages after which a batch is sent."""


def _gated_frames(add: Callable[[bytes], None]) -> GateSink:
    """Pass frames on, which the gate may have joined to more than a batch may contain."""

    def write(data: bytes) -> None:
        for frame in split_frames(data):
            add(frame)

    return GateSink(write)


@dataclass(eq=False, repr=False)
class Qos0Exchange:
    """Sends QoS 0 messages to the other brokers, and routes those of the others.

    ``send`` sends a batch of at most ``largest`` bytes; it returns False if that fails.
    ``publishers`` route the messages of each log. ``route_later`` arranges for :meth:`route` to be
    called in another turn.
    """

    _node: NodeContext
    _send: Callable[[bytes], bool]
    _largest: int
    _publishers: Mapping[str, OutsidePublisher]
    _shares: SharedSubscriptions
    _route_later: Callable[[], None]

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._gated = _gated_frames(self._add_frame)
        self._frames: list[bytes] = []
        self._frames_size = 0
        self._unrouted: deque[tuple[str, Qos0Messages]] = deque()
        """Messages of other brokers that wait for another turn."""
        self._unrouted_bytes = 0
        self._epochs: dict[str, int] = {}
        """Other log -> the highest epoch in its messages."""

    def pass_on(self, messages: Qos0Messages, *, gated: bool) -> None:
        """Send messages to the other brokers, at the end of this iteration of the loop.

        ``gated``: they wait until the events that they depend on are on disk.
        """
        frame = encode_frame(messages._replace(epoch=self._node.state.epoch))
        if len(frame) > self._largest:
            self._send_apart(messages, gated=gated)
        elif gated:
            self._node.journal.send_when_durable(self._gated, frame)
        else:
            self._node.journal.send_unlogged(self._gated, frame)

    def await_proof(self) -> None:
        """Hold all messages until the events of this turn are on disk."""
        self._node.journal.order_behind(self._gated)

    def _add_frame(self, frame: bytes) -> None:
        if not self._frames:
            self._loop.call_soon(self._flush)
        if self._frames_size + len(frame) > min(self._largest, _SENT_AT_ONCE):
            self._flush()
        self._frames.append(frame)
        self._frames_size += len(frame)

    def _send_apart(self, messages: Qos0Messages, *, gated: bool) -> None:
        """Send messages that exceed the size of a batch in halves."""
        topics, payloads, blocks = messages[:3]
        if len(topics) == 1:
            self._node.count_dropped("exchange_too_large", 1)
            return
        half = len(topics) // 2
        for piece in (slice(None, half), slice(half, None)):
            part = messages._replace(
                topics=topics[piece], payloads=payloads[piece], blocks=blocks[piece]
            )
            self.pass_on(part, gated=gated)

    def _flush(self) -> None:
        """Send the batch."""
        frames, self._frames, self._frames_size = self._frames, [], 0
        if frames and not self._send(b"".join(frames)):
            self._node.count_dropped("exchange_unavailable", len(frames))

    def take(self, name: str, batch: bytes) -> None:
        """Route a batch of another broker; messages beyond the limit of this turn are routed later.

        Messages of a leader that was replaced would be out of order: they are dropped.
        """
        waited = bool(self._unrouted)
        if waited and self._unrouted_bytes + len(batch) > _UNROUTED:
            self._node.count_dropped("exchange_slow", 1)
            return
        try:
            for messages in decode_frames(batch):
                if messages.epoch < self._epochs.get(name, 0):
                    self._node.count_dropped("exchange_replaced", len(messages.topics))
                    continue
                self._epochs[name] = messages.epoch
                if messages.share:
                    self._take_shared(messages)
                    continue
                self._unrouted.append((name, messages))
                self._unrouted_bytes += _size(messages.topics, messages.payloads, messages.blocks)
        except ValueError as error:
            _log.warning("a batch of another broker cannot be read", reason=str(error))
        if not waited:
            self.route()

    def route(self) -> None:
        """Route messages of other brokers; those beyond the limit of this turn wait."""
        while self._unrouted:
            name, messages = self._unrouted[0]
            publisher, topics = self._publishers[name], messages.topics
            count = publisher.at_once(topics, 0)
            if not count:
                self._route_later()
                return
            packet = Publishes(0, retain=messages.retain)
            packet.topics += topics[:count]
            packet.payloads.extend(messages.payloads[:count])
            packet.blocks = [*messages.blocks[:count]] if messages.blocks else None
            self._unrouted_bytes -= _size(packet.topics, packet.payloads, packet.blocks or ())
            if count == len(topics):
                self._unrouted.popleft()
            else:
                self._unrouted[0] = (
                    name,
                    Qos0Messages(
                        topics[count:],
                        messages.payloads[count:],
                        messages.blocks[count:],
                        messages.retain,
                    ),
                )
            publisher.route_unrecorded(packet)

    def _take_shared(self, messages: Qos0Messages) -> None:
        """Divide messages of QoS 0 that the home of a shared subscription passed to a log."""
        node, name = self._node, messages.share
        if messages.log != node.options.node or name not in node.router.groups:
            return
        receiver = self._shares.receiver(name)
        if receiver is not None:
            batch = Batch(0, messages.topics, messages.payloads, (), blocks=messages.blocks)
            receiver.add_assigned(Outgoing(only_subscriber(name), batch, 0))


@dataclass(eq=False, repr=False)
class LiveMessages:
    """Passes messages of QoS 0 on some topics to the outbox: an observer of topics."""

    _node: NodeContext
    _filters: Sequence[str]
    _send: Callable[[bytes], bool]

    def __post_init__(self) -> None:
        self._gated = _gated_frames(self._send_frame)

    def observes(self, topic: str) -> bool:
        """Return whether messages on a topic are passed on."""
        return any(matches(each, topic) for each in self._filters)

    def is_ready(self, _topic: bytes) -> bool:
        """Return True: nothing needs to be prepared."""
        return True

    def published(self, publication: Publication) -> None:
        """Pass messages of clients of this log on."""
        batch, content = publication.batch, publication.content
        if batch.qos or publication.taken:
            return
        chosen = [at for at, raw in enumerate(batch.topics) if self.observes(raw.decode())]
        payloads, blocks = content.payloads, content.blocks or ()
        frame = encode_frame(
            Qos0Messages(
                [batch.topics[at] for at in chosen],
                [payloads[at] for at in chosen],
                [blocks[at] for at in chosen] if blocks else (),
                batch.published_retain,
                publication.session,
            )
        )
        if batch.gated:
            self._node.journal.send_when_durable(self._gated, frame)
        else:
            self._node.journal.send_unlogged(self._gated, frame)

    def _send_frame(self, frame: bytes) -> None:
        if not self._send(frame):
            self._node.count_dropped("exchange_unavailable", 1)


def _size(topics: Sequence[bytes], payloads: Sequence[bytes], blocks: Sequence[bytes]) -> int:
    """Return the bytes that messages take while they wait."""
    return _KEPT * len(topics) + sum(map(len, chain(topics, payloads, blocks)))
