"""The content of trace lines: packets, messages and events as small JSON objects.

The size of a line is limited: names are shortened, lists and payloads show their beginning.
Passwords, Authentication Data and the payloads of wills are never shown.
"""

from __future__ import annotations

import base64
from itertools import islice
from typing import TYPE_CHECKING, Any

from pykka.messages import _ActorStop

from actors.kernel.references import ActorFailed
from actors.session.session_messages import (
    Authenticated,
    Batch,
    ChangeQos,
    Close,
    ConnectionAttached,
    ConnectionDetached,
    ConnectRequest,
    Loaded,
    Outgoing,
    Packets,
    Retry,
)
from eventstore.format.event_json import field_values
from eventstore.format.positions import to_runs
from protocol.mqtt.message_properties import decode_message_properties
from protocol.mqtt.packets import (
    Acks,
    Auth,
    Connect,
    Disconnect,
    PacketType,
    Publish,
    Publishes,
    Subscribe,
    Unsubscribe,
)
from protocol.mqtt.server_packet_decoder import Connack, Suback, Unsuback
from protocol.mqtt.server_packet_decoder_v5 import Answer, SentMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from eventstore.format.event_parsing import Event
    from eventstore.format.events import MessagePublished
    from eventstore.format.positions import Position, Run
    from eventstore.log.message_store import MessageStore
    from projections.state.retained import RetainedMessage

NAME_LIMIT = 256
"""Maximum characters of a name (client identifier, topic, filter, ...)."""
PAYLOAD_LIMIT = 200
"""Maximum bytes of a payload."""
LISTED = 20
"""Maximum items of a list."""
_MESSAGES = 3
"""Maximum messages of a batch."""
_DEPTH = 4


def short(text: str) -> str:
    """Return a name, shortened if it is long, with the number of omitted characters."""
    rest = len(text) - NAME_LIMIT
    return f"{text[:NAME_LIMIT]}...({rest} more)" if rest > 0 else text


def payload_fields(payload: bytes) -> dict[str, Any]:
    """Return the size and beginning of a payload."""
    head = base64.b64encode(payload[:PAYLOAD_LIMIT]).decode("ascii")
    return {"size": len(payload), "payload_base64": head}


def topic_text(raw: bytes) -> str:
    """Return a topic, shortened if it is long."""
    return short(raw.decode("utf-8", "replace"))


def first_of(runs: Sequence[Run], most: int) -> list[int]:
    """Return the first integers of runs, at most ``most``."""
    values: list[int] = []
    for run in runs:
        left = most - len(values)
        if left <= 0:
            break
        if isinstance(run, int):
            values.append(run)
        else:
            first, count, step = run
            values.extend(range(first, first + min(count, left) * step, step))
    return values


# Packets.


def packet_count(packet: Any) -> int:
    """Return how many objects :func:`packet_objects` yields for a packet."""
    return len(packet) if isinstance(packet, Publishes) else 1


def packet_objects(packet: Any) -> Iterator[dict[str, Any]]:
    """Yield a packet, from a client or from the broker, as objects."""
    if isinstance(packet, Publishes):
        yield from _publishes(packet)
        return
    found: dict[str, Any] = {"type": type(packet).__name__.upper()}
    if isinstance(packet, Publish):
        found |= _publish(packet)
    elif isinstance(packet, SentMessage):
        found = {"type": "PUBLISH", **_publish(packet.publish)}
        if packet.identifiers:
            found["identifiers"] = list(packet.identifiers[:LISTED])
        if packet.alias:
            found["alias"] = packet.alias
    elif isinstance(packet, Answer):
        found = {"type": packet.kind.name, **_answer(packet)}
    elif isinstance(packet, Acks):
        found["type"] = packet.kind.name
        found |= {"packet_ids": to_runs(packet.packet_ids)[:LISTED], "count": len(packet)}
    else:
        make = _PACKETS.get(type(packet))
        if make is not None:
            found |= make(packet)
    yield found


def _publishes(packet: Publishes) -> Iterator[dict[str, Any]]:
    for publish in packet:
        yield from packet_objects(publish)


def _publish(packet: Publish) -> dict[str, Any]:
    return {
        "qos": packet.qos,
        "retain": packet.retain,
        "dup": packet.dup,
        "packet_id": packet.packet_id or None,
        "topic": topic_text(packet.topic),
        **payload_fields(packet.payload),
        **property_fields(packet.block),
    }


def property_fields(block: bytes) -> dict[str, Any]:
    """Return the MQTT 5 properties of a message, if it has any."""
    if not block:
        return {}
    found = decode_message_properties(block)
    correlation = found.correlation
    texts = {
        "payload_format": found.payload_format or None,
        "expiry": found.expiry,
        "content_type": None if found.content_type is None else short(found.content_type),
        "response_topic": None if found.response_topic is None else short(found.response_topic),
        "correlation": None if correlation is None else correlation[:PAYLOAD_LIMIT].hex(),
        "user": [[short(name), short(value)] for name, value in found.user[:LISTED]] or None,
    }
    return {"properties": {name: value for name, value in texts.items() if value is not None}}


def _connect(packet: Connect) -> dict[str, Any]:
    will = packet.will
    return {
        "client": short(packet.client_id),
        "level": packet.version,
        "clean": packet.clean,
        "keep_alive": packet.keep_alive,
        "user": None if packet.username is None else short(packet.username),
        "will": None
        if will is None
        else {
            "topic": short(will.topic),
            "qos": will.qos,
            "retain": will.retain,
            "size": len(will.payload),
        },
    }


def _answer(packet: Answer) -> dict[str, Any]:
    """Return the content of a packet to an MQTT 5 client, without its properties."""
    found: dict[str, Any] = {"reason": packet.reason}
    if packet.packet_id:
        found["packet_id"] = packet.packet_id
    if packet.codes:
        found |= {"codes": list(packet.codes[:LISTED]), "count": len(packet.codes)}
    if packet.kind is PacketType.CONNACK:
        found["session_present"] = packet.session_present
    return found


def _subscribe(packet: Subscribe) -> dict[str, Any]:
    shown = [[short(one), qos] for one, qos in packet.filters[:LISTED]]
    more: dict[str, Any] = {}
    if any(packet.options):
        more["options"] = packet.options[:LISTED]
    if packet.identifier:
        more["identifier"] = packet.identifier
    return {"packet_id": packet.packet_id, "filters": shown, "count": len(packet.filters), **more}


def _unsubscribe(packet: Unsubscribe) -> dict[str, Any]:
    shown = list(map(short, packet.filters[:LISTED]))
    return {"packet_id": packet.packet_id, "filters": shown, "count": len(packet.filters)}


def _suback(packet: Suback) -> dict[str, Any]:
    codes = packet.codes
    return {"packet_id": packet.packet_id, "codes": list(codes[:LISTED]), "count": len(codes)}


_PACKETS: dict[type, Callable[[Any], dict[str, Any]]] = {
    Auth: lambda packet: {"reason": packet.reason, "method": short(packet.method)},
    Disconnect: lambda packet: {"reason": packet.reason} if packet.reason else {},
    Connect: lambda packet: {**_connect(packet), "password": packet.password is not None},
    Subscribe: _subscribe,
    Unsubscribe: _unsubscribe,
    Suback: _suback,
    Unsuback: lambda packet: {"packet_id": packet.packet_id},
    Connack: lambda packet: {"code": packet.code, "session_present": packet.session_present},
}


# Messages between actors.


def message_object(message: Any) -> tuple[str, dict[str, Any]]:
    """Return the name and a description of a message to an actor."""
    if isinstance(message, list):
        return "Retained", {"count": len(message), "messages": _retained(message)}
    make = _MESSAGES_MADE.get(type(message))
    name = "Stop" if isinstance(message, _ActorStop) else type(message).__name__.lstrip("_")
    return name, make(message) if make is not None else {}


def _batch(batch: Batch) -> dict[str, Any]:
    return {
        "qos": batch.qos,
        "retain": batch.retain,
        "count": len(batch),
        "messages": list(islice(_messages(batch), _MESSAGES)),
    }


def _messages(batch: Batch) -> Iterator[dict[str, Any]]:
    for at, (topic, payload) in enumerate(zip(batch.topics, batch.payloads, strict=True)):
        place = {"position": batch.positions[at]} if at < len(batch.positions) else {}
        yield {**place, "topic": topic_text(topic), **payload_fields(payload)}


def _retained(messages: list[RetainedMessage]) -> list[dict[str, Any]]:
    return [
        {"position": one.ref, "topic": short(one.topic), **payload_fields(one.payload)}
        for one in messages[:_MESSAGES]
    ]


def _outgoing(message: Outgoing) -> dict[str, Any]:
    about = _batch(message.batch)
    return {**about, "qos": message.qos, "filter": short(message.subscriber.filter)}


def _asks_to_connect(message: ConnectionAttached | ConnectRequest) -> dict[str, Any]:
    return {"connection": message.connection.actor_urn, **_connect(message.connect)}


def _detached(message: ConnectionDetached) -> dict[str, Any]:
    urn = None if message.connection is None else message.connection.actor_urn
    return {"connection": urn, "reason": short(message.reason), "orderly": message.orderly}


def _packets(message: Packets) -> dict[str, Any]:
    names = [
        packet.kind.name if isinstance(packet, Acks) else type(packet).__name__.upper()
        for packet in message.packets[:LISTED]
    ]
    names = ["PUBLISH" if name == "PUBLISHES" else name for name in names]
    count = sum(map(packet_count, message.packets))
    return {"connection": message.connection.actor_urn, "count": count, "packets": names}


def _failed(message: ActorFailed) -> dict[str, Any]:
    error = f"{type(message.error).__name__}: {message.error}"
    return {"failed": message.actor.actor_urn, "error": short(error)}


_MESSAGES_MADE: dict[type, Callable[[Any], dict[str, Any]]] = {
    ConnectionAttached: _asks_to_connect,
    Authenticated: lambda message: {"result": message.verdict.result.name.lower()},
    Batch: _batch,
    Close: lambda message: {"reason": short(message.reason)},
    ConnectRequest: _asks_to_connect,
    ConnectionDetached: _detached,
    ActorFailed: _failed,
    Loaded: lambda message: {"count": len(message.found)},
    Outgoing: _outgoing,
    Packets: _packets,
    ChangeQos: lambda message: {"qos": message.qos},
    Retry: lambda message: {**_detached(message.message), "attempts": message.attempts},
    bytes: lambda message: {"size": len(message)},
}


# Events.


def event_object(event: Event) -> tuple[dict[str, Any], dict[str, int]]:
    """Return an event, shortened, and the lengths of its shortened lists.

    The event can be parsed by ``eventstore.format.event_parsing.parse_event``.
    """
    found: dict[str, Any] = {}
    cut: dict[str, int] = {}
    for name, value in field_values(event).items():
        if isinstance(value, list) and len(value) > LISTED:
            cut[name] = len(value)
        found[name] = _bounded(value, _DEPTH)
    return found, cut


def payload_bytes(event: MessagePublished) -> int:
    """Return the total payload bytes of an event."""
    sizes = event.sizes
    return sizes * event.count if isinstance(sizes, int) else sum(sizes)


def _bounded(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return short(value)
    if isinstance(value, (list, tuple)):
        return [_bounded(item, depth - 1) for item in value[:LISTED]] if depth else []
    if isinstance(value, dict):
        kept = islice(value.items(), LISTED)
        return {short(str(key)): _bounded(item, depth - 1) for key, item in kept} if depth else {}
    return value if value is None or isinstance(value, (int, float)) else short(str(value))


def messages_of(refs: Sequence[Run], store: MessageStore) -> list[dict[str, Any]]:
    """Return topic and size of the first messages at these positions, if they are cached."""
    return [
        {"position": ref, "topic": topic_text(message.topic), "size": len(message.payload)}
        for ref in first_of(refs, _MESSAGES)
        if (message := store.get(ref)) is not None
    ]


def published_messages(
    event: MessagePublished, at: Position, payloads: Sequence[bytes]
) -> list[dict[str, Any]]:
    """Return the first messages of a publication being recorded."""
    return [
        {
            "position": at + offset,
            "topic": short(event.topics[event.which[offset] if event.which else 0]),
            **payload_fields(payload),
        }
        for offset, payload in enumerate(payloads[:_MESSAGES])
    ]
