"""Publications through the HTTP API, which the web page's process requests over NATS.

They are admitted, recorded and routed as those of clients: as user ``$api``, in the session
``$api/TOKEN`` of the token, which the broker opens and closes. The answer has a receipt for each
message, and is sent when all of them are on disk.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Generator, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias

from actors.access.rules import TopicAcl
from actors.inspection.inspector import NotReady, Refused, Work, text, valid
from actors.session.decisions.publish_admission import TOO_LARGE, admit
from actors.session.node_context import NodeContext
from actors.session.outside_publisher import GateSink, OutsidePublisher, packet_ids_after
from eventstore.format.events import API_SESSION, API_USER
from protocol.mqtt.message_properties import (
    MessageProperties,
    decode_message_properties,
    encode_message_properties,
)
from protocol.mqtt.packets import Publishes
from protocol.mqtt.protocol_error import ProtocolError
from protocol.mqtt.topics import TopicError, validate_topic_name

MAX_MESSAGES: Final = 1000
_AT_ONCE: Final = 128
_LEVEL: Final = 4
"""Protocol level in the log for the sessions of tokens: their rules are those of MQTT 3.1.1."""
_PAUSE: Final = 0.005
"""Seconds until the receivers of a topic, or the log, are looked at again."""
_LONGEST_NAME: Final = 64
_LONGEST: Final = 65_535
_MAX_USER: Final = 80
_MAX_SECONDS: Final = 0xFFFF_FFFF

_Receipt: TypeAlias = "dict[str, Any]"
_Pauses: TypeAlias = "Generator[asyncio.Future[Any] | None, None, None]"


class _ApiMessage(NamedTuple):
    topic: bytes
    payload: bytes
    qos: int
    retain: bool
    block: bytes

    @property
    def flags(self) -> tuple[int, bool]:
        return self.qos, self.retain

    @property
    def size(self) -> int:
        return len(self.topic) + len(self.payload) + len(self.block)


class ApiPublishing:
    """Publishes for the tokens of the web page."""

    def __init__(self, node: NodeContext) -> None:
        self._node = node
        self._last_id = 0

    def publish(self, request: Mapping[str, Any], by: str) -> Work:
        """Publish messages in order: ``by`` names the token; ``messages`` are objects."""
        requests = request.get("messages")
        if len(by) > _LONGEST_NAME:
            raise Refused(f"by must name the token, in at most {_LONGEST_NAME} characters")
        if not isinstance(requests, list) or not 0 < len(requests) <= MAX_MESSAGES:
            raise Refused(f"messages must be a list of 1 to {MAX_MESSAGES} objects")
        messages = []
        for each in requests:  # all of them, before any is published
            messages.append(_message(each))
            yield None
        session = API_SESSION + by
        publisher = OutsidePublisher(self._node, session)
        access = self._node.permissions.permissions.access(API_USER, (), session)
        receipts: list[_Receipt] = []
        waits: list[asyncio.Future[None]] = []
        for run in _runs(messages):
            refusals = yield from self._refusals(run, publisher, access)
            begin = 0
            for at in (*refusals, len(run)):
                if at > begin:
                    yield from self._publish(publisher, run[begin:at], receipts, waits)
                if at < len(run):
                    receipts.append({"refused": refusals[at]})
                begin = at + 1
        yield from waits
        return {"node": self._node.options.node, "receipts": receipts}

    def end(self) -> None:
        """Close the sessions of tokens, when the broker stops."""
        for name in list(self._node.state.sessions.live):
            if name.startswith(API_SESSION):
                OutsidePublisher(self._node, name).close("broker_stopped")

    def _check_ready(self) -> None:
        reasons = self._node.not_ready_reasons()
        if reasons:
            raise NotReady(f"nothing can be published now: {'; '.join(reasons)}")

    def _publish(
        self,
        publisher: OutsidePublisher,
        run: Sequence[_ApiMessage],
        receipts: list[_Receipt],
        waits: list[asyncio.Future[None]],
    ) -> _Pauses:
        """Publish messages with the same flags, in parts that fit into a turn."""
        node = self._node
        while run:
            self._check_ready()
            topics = [message.topic for message in run]
            count = 0 if node.journal.congested else publisher.at_once(topics, run[0].qos)
            if not count:
                later = asyncio.get_running_loop().create_future()
                node.timers.after(_PAUSE, partial(_resolve, later))
                yield later
                continue
            packet = _packet(run[:count])
            recorded = bool(packet.qos or packet.retain)
            publisher.open(_LEVEL, API_USER)  # observers of topics may record messages, too
            if packet.qos:
                packet.packet_ids += packet_ids_after(self._last_id, count)
                self._last_id = packet.packet_ids[-1]
            places = publisher.publish_from_nats(packet)
            # A message of QoS 2 takes effect with its Released, which follows.
            behind = packet.qos == 2
            positions = [first + size * behind + at for first, size in places for at in range(size)]
            routes = node.router.routes
            for at, message in enumerate(run[:count]):
                receipt: _Receipt = {"matched": len(routes[message.topic].targets)}
                receipts.append({"position": positions[at], **receipt} if recorded else receipt)
            if recorded:
                waits.append(asyncio.get_running_loop().create_future())
                node.journal.send_when_durable(GateSink(partial(_resolve, waits[-1])), b" ")
                node.kernel.wake()
            run = run[count:]
            yield None

    def _refusals(
        self, run: Sequence[_ApiMessage], publisher: OutsidePublisher, access: TopicAcl
    ) -> Generator[None, None, dict[int, str]]:
        """Return why messages with the same flags are refused, by their numbers in order."""
        yield None
        if not self._refusal(run, publisher, access):
            return {}
        refusals: dict[int, str] = {}
        for number, message in enumerate(run):
            if reason := self._refusal([message], publisher, access):
                refusals[number] = reason
                publisher.drop(reason, [message.topic], recorded=False)
            yield None
        return refusals

    def _refusal(
        self, run: Sequence[_ApiMessage], publisher: OutsidePublisher, access: TopicAcl
    ) -> str:
        """Return why some of the messages are refused; empty: none is."""
        if max(message.size for message in run) > self._node.options.max_packet_size:
            return TOO_LARGE
        packet = _packet(run)
        packet.packet_ids += range(1, len(run) + 1) if packet.qos else ()
        large = publisher.too_large(packet)
        admitted = admit(packet, self._node.publish_rules, access, {}, large)
        if len(admitted.accepted.topics) == len(run):
            return ""
        return admitted.close or admitted.drops[0][0]


def _resolve(waited: asyncio.Future[None], _data: bytes = b"") -> None:
    if not waited.done():
        waited.set_result(None)


def _runs(messages: Sequence[_ApiMessage]) -> Iterator[list[_ApiMessage]]:
    """Yield the messages in parts with the same flags."""
    for _, group in groupby(messages, attrgetter("flags")):
        run = [*group]
        for begin in range(0, len(run), _AT_ONCE):
            yield run[begin : begin + _AT_ONCE]


def _packet(run: Sequence[_ApiMessage]) -> Publishes:
    """Return messages with the same flags as packets, without packet identifiers."""
    packet = Publishes(run[0].qos, retain=run[0].retain)
    packet.topics += [message.topic for message in run]
    packet.payloads.extend([message.payload for message in run])
    if any(message.block for message in run):
        packet.blocks = [message.block for message in run]
    return packet


def _message(request: object) -> _ApiMessage:
    """Return a message of a request; raises Refused."""
    if not isinstance(request, dict):
        raise Refused("a message must be an object")
    topic = valid(request, "topic")
    qos, retain = request.get("qos", 1), request.get("retain", False)
    try:
        payload = base64.b64decode(text(request, "payload_base64"), validate=True)
    except binascii.Error:
        raise Refused("payload_base64 must be base64") from None
    if qos not in (0, 1, 2) or isinstance(qos, bool) or not isinstance(retain, bool):
        raise Refused("qos must be 0, 1 or 2, and retain true or false")
    properties = request.get("properties")
    block = _block(properties) if properties else b""
    return _ApiMessage(topic.encode(), payload, qos, retain, block)


def _block(request: object) -> bytes:
    """Return the properties of a message as a block; raises Refused."""
    if not isinstance(request, dict):
        raise Refused("properties must be an object")
    expiry, form = request.get("message_expiry_interval"), request.get("payload_format", 0)
    if expiry is not None and not (type(expiry) is int and 0 <= expiry <= _MAX_SECONDS):
        raise Refused(f"message_expiry_interval must be a number of seconds up to {_MAX_SECONDS}")
    if form not in (0, 1) or isinstance(form, bool):
        raise Refused("payload_format must be 0 or 1")
    user = request.get("user_properties", [])
    pairs = isinstance(user, list) and all(
        isinstance(pair, list) and len(pair) == 2 and all(map(_fits, pair)) for pair in user
    )
    if not pairs or len(user) > _MAX_USER:
        raise Refused(f"user_properties must be at most {_MAX_USER} pairs of texts")
    texts = [request.get(name) for name in ("content_type", "response_topic")]
    correlation = request.get("correlation_data")
    if not all(each is None or _fits(each) for each in (*texts, correlation)):
        raise Refused("content_type, response_topic and correlation_data must be texts")
    try:
        if texts[1] is not None:
            validate_topic_name(texts[1])
        data = None if correlation is None else bytes.fromhex(correlation)
        users = tuple((name, value) for name, value in user)
        properties = MessageProperties(form, expiry, texts[0], texts[1], data, users)
        block = encode_message_properties(properties)
        decode_message_properties(block)
    except TopicError as error:
        raise Refused(f"response_topic: {error}") from None
    except ProtocolError as error:
        raise Refused(f"properties: {error}") from None
    except ValueError:
        raise Refused("correlation_data must be hexadecimal") from None
    return block


def _fits(value: object) -> bool:
    return isinstance(value, str) and len(value.encode("utf-8", "replace")) <= _LONGEST
