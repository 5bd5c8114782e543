"""From NATS to MQTT: messages from NATS become publications.

At QoS 0 they are routed immediately, like any QoS 0 publication. With a QoS of 1 or 2 (by a header,
or ``bridge_qos``) or a retain header they are recorded first, as published by the session
``$nats``; a message with a reply subject gets an answer in JetStream's format when the record is on
disk.

With several logs (:mod:`actors.bridge`) each broker delivers messages at QoS 0 only to
its own clients. Other messages are recorded by the home of their topic, from which the other logs
take them.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from typing import Final, NamedTuple

import orjson

from actors.bridge.bridge_properties import PropertyReader
from actors.bridge.bridge_stats import BridgeStats
from actors.bridge.filter_reports import FilterReports
from actors.bridge.interest import Interest, OwnMessages, SubjectInterest
from actors.bridge.replies import LONGEST, Answered, Replies
from actors.limits.bridge_options import REPLIES, REQUESTS, BridgeOptions
from actors.routing.subscriber import Subscriber, is_shared
from actors.session.node_context import NodeContext
from actors.session.outside_publisher import OutsidePublisher, packet_ids_after
from actors.session.session_messages import Batch
from actors.session.subscription_actor import Subscription
from eventstore.format.events import NATS_SESSION
from eventstore.format.positions import INDEX_BITS, Position
from eventstore.log.pending_record import OutputSink
from eventstore.nats.batch_client import encode_pub
from eventstore.nats.batch_transport import NatsMessage
from protocol.mqtt.packets import Publishes
from protocol.nats.headers import Headers, encode_value, has_status, parse_headers
from protocol.nats.property_headers import NO_PROPERTIES, ReadProperties

_LEVEL = 4
"""Protocol level in the log for the session of NATS: its rules are those of MQTT 3.1.1."""
_REMEMBERED = 100_000
_REMEMBERED_FOR = 120.0
"""Number of ``Nats-Msg-Id`` kept for deduplication, and seconds for which, as in JetStream."""
_QOS: Final = {"0": 0, "1": 1, "2": 2}
_SPARKPLUG: Final = b"spBv1.0/"
_NOT_ANSWERED: Final = (b"$", b"foldmq.")
"""Replies to such subjects are allowed only to clients that may publish there."""
_CONDITIONS: Final = (
    "Nats-Expected-Last-Sequence",
    "Nats-Expected-Last-Subject-Sequence",
    "Nats-Expected-Last-Msg-Id",
)
"""Headers that make JetStream store a message only if the end of the stream matches."""
_NOT_PERMITTED: Final = {"code": 403, "description": "not permitted"}
_ANY: Final = "-"
"""Placeholder for a token, to find out which subscribers would get a request."""
_LONGEST_ACK: Final = 1024
_AT_ONCE: Final = 128
"""Messages whose topics are looked up together."""


@dataclass(eq=False, repr=False)
class FromNats:
    """Publishes messages from NATS."""

    _node: NodeContext
    _options: BridgeOptions
    _interest: Interest
    _replies: Replies
    _stats: BridgeStats
    _properties: PropertyReader
    _stream: str
    """That of the log."""
    _prefix_of: Callable[[str], str]
    """Returns the prefix of a session."""
    _answers: OutputSink
    """Gets protocol lines for NATS when the gate releases them."""
    _reports: FilterReports | None = None
    """Those of other logs; None: there are none."""

    def __post_init__(self) -> None:
        self._homes = self._interest.homes
        names = [self._node.options.node] if self._homes is None else self._homes.names
        self._names = {encode_value(name).decode() for name in names}
        """The names of the brokers that share the clients, as headers contain them."""
        self._streams = {self._stream} | {f"FOLDMQ_LOG_{name}" for name in names}
        self._publisher = OutsidePublisher(self._node, NATS_SESSION)
        self._seen: OrderedDict[bytes, tuple[float, int]] = OrderedDict()
        self._pid = 0
        self._own = OwnMessages(self._node.options.node) if self._options.several_nodes else None
        """Finds messages that another node sent; None: there are no other nodes."""
        self._waiting: deque[_Arrival] = deque()
        """Messages that arrived and are not published yet."""
        self._plain = _Declared(self._options.qos, False, None, b"", None, False)
        """The declarations of a message without headers and reply subject."""

    def add(
        self, messages: Iterable[NatsMessage], answers: Iterable[tuple[NatsMessage, Answered]]
    ) -> None:
        """Add messages that arrived, and answers to requests of MQTT clients."""
        if self._own is not None:
            messages = [message for message in messages if not self._is_own(message, self._own)]
        self._waiting += [_Arrival(message, None) for message in messages]
        self._waiting += [_Arrival(message, answered) for message, answered in answers]

    def _is_own(self, message: NatsMessage, own: OwnMessages) -> bool:
        """Return whether another node sent a message for this log, which already has it."""
        if not message.headers:
            return False
        topic = self._interest.place(message.subject).topic
        return topic is not None and own.has(message.headers, topic)

    def take(self) -> bool:
        """Publish messages in order of arrival; return whether all were published.

        If not, the rest is too much for this turn: call this again in the next one.
        """
        while self._waiting:
            arrivals = self._next()
            if not arrivals:
                return False
            run: _Run | None = None
            for message, answered in arrivals:
                run = self._take(run, message, answered)
            self._publish(run)
        return True

    def _next(self) -> list[_Arrival]:
        """Return the next messages, as many as can be routed in this turn."""
        arrivals = [*islice(self._waiting, _AT_ONCE)]
        topics = [
            topic for arrival in arrivals if (topic := self._place(arrival).topic) is not None
        ]
        room = self._publisher.at_once(topics, 1 if self._options.qos else 0) if topics else 0
        if room < len(topics):
            for number, arrival in enumerate(arrivals):
                if self._place(arrival).topic is not None:
                    room -= 1
                    if room < 0:
                        del arrivals[number:]
                        break
        for _ in arrivals:
            self._waiting.popleft()
        return arrivals

    def _place(self, arrival: _Arrival) -> SubjectInterest:
        """Return the subscriptions for a message; an answer is for a Response Topic."""
        message, answered = arrival
        return self._interest.place(message.subject if answered is None else answered[0])

    def _take(
        self, run: _Run | None, message: NatsMessage, answered: Answered | None
    ) -> _Run | None:
        """Add a message to a run, unless it is not for MQTT clients."""
        if answered is not None:
            subject, correlation = answered
            place = self._interest.place(subject)
            if place.topic is None or _is_stream_answer(message):
                return run
            message = message._replace(subject=subject)
            return self._add(run, message, place, place.topic, correlation, answer=True)
        place = self._interest.place(message.subject)
        headers = message.headers
        if place.topic is None or (headers and has_status(headers)):
            return run
        homes = self._homes
        if homes is not None and headers and homes.is_from_broker(headers, place.header):
            return run
        if not self._interest.copies.first(place.sids, message):
            return run
        return self._add(run, message, place, place.topic)

    def _add(
        self,
        run: _Run | None,
        message: NatsMessage,
        place: SubjectInterest,
        topic: bytes,
        correlation: bytes | None = None,
        *,
        answer: bool = False,
    ) -> _Run | None:
        """Add a message to a run; publish the run and return another one if they differ.

        ``correlation`` is the Correlation Data of the request that the message answers
        (``answer``). An answer is never retained: its sender may only answer on that topic.
        """
        node, payload = self._node, message.payload
        self._stats.received += 1
        if len(payload) > node.options.max_packet_size or not self._publisher.fits(topic, payload):
            node.count_dropped("bridge_too_large", 1)
            return run
        plain = not message.headers and not message.reply and correlation is None
        declared = self._plain if plain else self._read(message, place.prefix)
        if answer and declared.retain:
            declared = declared._replace(retain=False)
        if not node.permissions.from_nats(topic):
            self._drop_not_permitted(declared, place)
            return run
        if declared.recorded and not (place.at_home or answer):
            self._offer_request(declared, message, topic, place.prefix)
            return run
        block, asked, key = b"", False, declared.key
        if not plain:
            properties = self._find_properties(declared, message, topic, correlation)
            if properties is not None:
                if properties.is_expired:
                    node.count_dropped("expired", 1)
                    return run
                block = properties.block()
            if key is not None and (record := self._known(key)) is not None:
                return self._acknowledge_duplicate(run, key, record, declared.reply)
            if declared.reply:
                asked, block = self._ask(declared, properties, block, message, topic, place.prefix)
            if block and not self._publisher.fits(topic, payload, block):
                node.count_dropped("bridge_too_large", 1)
                return run
        about = declared.qos, declared.retain, place.prefix, answer
        if run is None or run.about != about:
            self._publish(run)
            packet = Publishes(declared.qos, retain=declared.retain)
            run = _Run(packet, place.prefix, answer)
        if key is not None:
            run.keys.append((len(run), key))
            self._seen[key] = (0.0, 0)
        if declared.reply and not asked:
            run.asked.append((len(run), declared.reply))
        run.add(topic, payload, block)
        return run

    def _drop_not_permitted(self, declared: _Declared, place: SubjectInterest) -> None:
        self._node.count_dropped("bridge_not_permitted", 1)
        if declared.reply and (place.at_home or not declared.recorded):
            self._refuse(declared.reply)

    def _offer_request(
        self, declared: _Declared, message: NatsMessage, topic: bytes, prefix: str
    ) -> None:
        """Deliver a request that another log records to clients of this one that answer it."""
        if not declared.reply or not self._requested(topic):
            return
        properties = self._find_properties(declared, message, topic, None)
        if properties is None or not properties.is_expired:
            self._ask(declared, properties, b"", message, topic, prefix)

    def _acknowledge_duplicate(
        self, run: _Run | None, key: bytes, record: int, reply: bytes
    ) -> _Run | None:
        """Answer the sender of a known message; record 0: it is in the run, not published yet."""
        if not record:
            self._publish(run)
            run, record = None, self._seen[key][1]
        self._acknowledge([(record, reply)], duplicate=True)
        return run

    def end(self, reason: str) -> None:
        """Close the session under which messages from NATS are recorded, if it is open."""
        self._publisher.close(reason)

    def _read(self, message: NatsMessage, prefix: str) -> _Declared:
        """Return the declarations of a message: flags, keys and reply subject."""
        qos, retain, reply = self._options.qos, False, message.reply
        headers, copied, key = None, False, None
        if message.headers:
            headers = parse_headers(message.headers)
            asked = headers.get("Foldmq-QoS")
            if asked in _QOS:
                qos = _QOS[asked]
            node = headers.get("Foldmq-Node")
            copied = node in self._names
            # Retained messages are shared by all users, so the prefix of a user allows none.
            retain = not prefix and not copied and headers.get("Foldmq-Retain") == "1"
            identifier = headers.get("Nats-Msg-Id")
            if identifier and (qos or retain) and not copied:
                # The sender chooses its length; the digest is short.
                about = b"%b %b" % (message.subject, identifier.encode(errors="replace"))
                key = blake2b(about, digest_size=16).digest()
            if node:
                reply = b""  # a probe, or meant for clients that read the Response Topic
            elif reply and self._for_another_stream(headers):
                reply = b""
        if reply and not self._may_answer(reply, prefix):
            reply = b""
        return _Declared(qos, retain, key, reply, headers, copied)

    def _find_properties(
        self, declared: _Declared, message: NatsMessage, topic: bytes, correlation: bytes | None
    ) -> ReadProperties | None:
        """Return the properties of a message; None if it has none, or no receiver uses them."""
        if declared.headers is None and correlation is None:
            return None
        asked = declared.reply and self._requested(topic)
        if not (declared.recorded or asked or self._is_read(topic)):
            return None
        return self._properties.read(
            declared.headers, message.payload, topic.decode(), correlation, copied=declared.copied
        )

    def _for_another_stream(self, headers: Headers) -> bool:
        """Return whether a message requires a JetStream stream.

        It names a stream that is not one of the logs, or an expected end of the stream.
        """
        stream = headers.get("Nats-Expected-Stream")
        return (bool(stream) and stream not in self._streams) or any(
            headers.get(name) is not None for name in _CONDITIONS
        )

    def _may_answer(self, reply: bytes, prefix: str) -> bool:
        """Return whether a sender under a prefix may cause a publication on a subject."""
        if reply.startswith(_NOT_ANSWERED) or len(reply) > LONGEST:
            return False
        return self._options.prefix_of(reply.decode(errors="replace")) in ("", prefix)

    def _publish(self, run: _Run | None) -> None:
        if run is None:
            return
        packet = run.packet
        is_receiver = self._wanted(run.prefix)
        if not packet.qos and not packet.retain:
            if self._node.options.record_qos0 or any(
                raw.startswith(_SPARKPLUG) for raw in packet.topics
            ):
                self._publisher.open(_LEVEL)  # births are recorded
            if self._homes is not None and not run.is_answer:
                homes = self._homes
                self._publisher.deliver_from_nats(packet, lambda raw: homes.is_home(raw.decode()))
            else:
                self._publisher.publish_from_nats(packet, is_receiver)
            return
        self._publisher.open(_LEVEL)
        if packet.qos:
            packet.packet_ids += packet_ids_after(self._pid, len(packet))
            self._pid = packet.packet_ids[-1]
        refs: list[Position] = []
        for first, count in self._publisher.publish_from_nats(packet, is_receiver):
            refs += range(first, first + count)
        now = self._node.clock.monotonic()
        for at, key in run.keys:
            self._seen[key] = (now, refs[at] >> INDEX_BITS)
        if run.asked:
            self._acknowledge([(refs[at] >> INDEX_BITS, reply) for at, reply in run.asked])

    def _wanted(self, prefix: str) -> Callable[[Subscriber], bool] | None:
        """Return a function that returns whether a subscriber belongs to a prefix."""
        if not self._options.prefixes:
            return None
        prefix_of = self._prefix_of
        return lambda subscriber: prefix_of(subscriber.session) == prefix

    def _is_read(self, topic: bytes) -> bool:
        """Return whether a message at QoS 0 reaches an MQTT 5 client."""
        return _at_v5(self._node.router.routes[topic].targets)

    def _requested(self, topic: bytes) -> Sequence[Subscriber]:
        """Return the subscribers of requests on a topic."""
        if not self._interest.requests:
            return ()
        asked = f"{REQUESTS}{_ANY}/{topic.decode()}"
        matching = self._node.router.match_system(asked)
        return [subscriber for subscriber in matching if subscriber.actor is not None]

    def _ask(
        self,
        declared: _Declared,
        properties: ReadProperties | None,
        block: bytes,
        message: NatsMessage,
        topic: bytes,
        prefix: str,
    ) -> tuple[bool, bytes]:
        """Deliver a request to subscribers of requests; return whether there are any.

        Also return the properties of the message for other subscribers. MQTT 5 clients that
        subscribe to the topic itself may also answer, unless the bridge does.
        """
        targets: Sequence[Subscriber] = ()
        if self._interest.requests:
            targets = [
                subscriber
                for subscriber in self._requested(topic)
                if self._prefix_of(subscriber.session) == prefix
            ]
        answerable = not declared.recorded and self._is_read(topic)
        if not targets and not answerable:
            return declared.recorded and self._is_answered_elsewhere(topic), block
        token = self._replies.expect(declared.reply, asked=bool(targets))
        with_response = (properties or NO_PROPERTIES).block(f"{REPLIES}{token}")
        if targets:
            raw = f"{REQUESTS}{token}/{topic.decode()}".encode()
            batch = Batch(0, [raw], [message.payload], (), blocks=[with_response])
            self._publisher.send(targets, batch)
        return bool(targets), with_response if answerable else block

    def _is_answered_elsewhere(self, topic: bytes) -> bool:
        """Return whether clients of another log get a recorded request, and may answer it."""
        return self._reports is not None and self._reports.is_answered(topic.decode())

    def _refuse(self, reply: bytes) -> None:
        """Answer a sender, in JetStream's format, that its message is not permitted."""
        answer = {"stream": self._stream, "seq": 0, "error": _NOT_PERMITTED}
        self._node.journal.send_when_durable(self._answers, encode_pub(reply, orjson.dumps(answer)))

    def _acknowledge(self, asked: Sequence[tuple[int, bytes]], *, duplicate: bool = False) -> None:
        """Answer senders with the records of their messages, when this turn is on disk."""
        lines = []
        for sequence, reply in asked:
            if not reply:
                continue
            answer: dict[str, object] = {"stream": self._stream, "seq": sequence}
            if duplicate:
                answer["duplicate"] = True
            body = orjson.dumps(answer)
            lines.append(encode_pub(reply, body))
        if lines:
            self._stats.acknowledged += len(lines)
            self._node.journal.send_when_durable(self._answers, b"".join(lines))

    def _known(self, key: bytes) -> int | None:
        """Return the record of a known message, 0 if it has none yet; None: it is new."""
        seen, now = self._seen, self._node.clock.monotonic()
        while seen:
            at, _ = seen[next(iter(seen))]
            if len(seen) < _REMEMBERED and (not at or at + _REMEMBERED_FOR > now):
                break
            seen.popitem(last=False)
        entry = seen.get(key)
        return None if entry is None else entry[1]


class _Arrival(NamedTuple):
    """A message from NATS, and the request of an MQTT client that it answers, if any."""

    message: NatsMessage
    answered: Answered | None


class _Declared(NamedTuple):
    """The declarations of a message in its headers and reply subject."""

    qos: int
    retain: bool
    key: bytes | None
    """The message ID, for deduplication."""
    reply: bytes
    """The reply subject; empty if no answer is expected or allowed."""
    headers: Headers | None
    copied: bool
    """Whether the headers were copied from a message of this broker."""

    @property
    def recorded(self) -> bool:
        """Whether the message is written to the log."""
        return bool(self.qos) or self.retain


@dataclass(slots=True)
class _Run:
    """Consecutive messages with the same flags."""

    packet: Publishes
    prefix: str
    is_answer: bool
    """Whether they answer requests of MQTT clients; only this broker gets these from NATS."""
    asked: list[tuple[int, bytes]] = field(default_factory=list)
    """(number of the message, reply subject)."""
    keys: list[tuple[int, bytes]] = field(default_factory=list)
    """(number of the message, message ID)."""

    @property
    def about(self) -> tuple[int, bool, str, bool]:
        """What its messages have in common."""
        return self.packet.qos, self.packet.retain, self.prefix, self.is_answer

    def __len__(self) -> int:
        return len(self.packet)

    def add(self, topic: bytes, payload: bytes, block: bytes) -> None:
        """Add a message."""
        packet = self.packet
        if block and not packet.blocks:
            packet.blocks = [b""] * len(packet)
        if packet.blocks is not None:
            packet.blocks.append(block)
        packet.topics.append(topic)
        packet.payloads.append(payload)


def _at_v5(targets: Iterable[Subscriber]) -> bool:
    """Return whether any of the subscribers may be an MQTT 5 client."""
    for target in targets:
        actor = target.actor
        if is_shared(target.session):
            return True
        if isinstance(actor, Subscription) and actor.delivery.encoder is not None:
            return True
    return False


def _is_stream_answer(answer: NatsMessage) -> bool:
    """Return whether an answer is a JetStream stream's acknowledgement.

    A stream that stores a message acknowledges it on its reply subject, where an MQTT client
    expects the answer of a service.
    """
    payload = answer.payload
    if answer.headers or len(payload) > _LONGEST_ACK or not payload.startswith(b"{"):
        return False
    try:
        content = orjson.loads(payload)
    except orjson.JSONDecodeError:
        return False
    return isinstance(content.get("stream"), str) and type(content.get("seq")) is int
