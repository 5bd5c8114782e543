"""The content of trace lines: events as ``foldmq log`` shows them, packets and messages as fields.

The size of a line is limited: names are shortened, lists and payloads show their beginning.
Passwords, Authentication Data and the payloads of wills are never shown.
"""

import base64
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from enum import Enum
from itertools import islice
from typing import Any, NamedTuple

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
from eventstore.display import payload_text
from eventstore.format.event_parsing import Event
from eventstore.format.events import MessagePublished
from eventstore.format.positions import Position, Run, count_runs, to_runs
from eventstore.log.message_store import MessageStore
from eventstore.reading.position_text import several
from projections.past import event_object, event_text
from projections.state.retained import RetainedMessage
from projections.views.session_view import Published, Topics
from protocol.mqtt.message_properties import decode_message_properties
from protocol.mqtt.packets import Acks, Auth, Disconnect, Publishes, Will
from protocol.mqtt.property_table import (
    ASSIGNED_CLIENT_IDENTIFIER,
    AUTHENTICATION_DATA,
    PROPERTIES,
    RESPONSE_INFORMATION,
)
from protocol.mqtt.server_packet_decoder import Answer, SentMessage

NAME_LIMIT = 256
"""Maximum characters of a name (client identifier, topic, filter, ...)."""
PAYLOAD_LIMIT = 200
"""Maximum bytes of a payload."""
LISTED = 20
"""Maximum items of a list."""
_MESSAGES = 3
"""Maximum messages of a batch."""
_DEPTH = 4
_TEXT_LIMIT = 2000
_SHORTER_NAMES = {"client_id": "client", "username": "user", "version": "level"}
_SECRETS = frozenset({"authentication_data", "data", "password"})
_WITH_NAMES = tuple(
    PROPERTIES[identifier].name for identifier in (ASSIGNED_CLIENT_IDENTIFIER, RESPONSE_INFORMATION)
)


def short(text: str, limit: int = NAME_LIMIT) -> str:
    """Return a name, shortened if it is long, with the number of omitted characters."""
    omitted = len(text) - limit
    return f"{text[:limit]}...({omitted} more)" if omitted > 0 else text


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
        room = most - len(values)
        if room <= 0:
            break
        if isinstance(run, int):
            values.append(run)
        else:
            first, count, step = run
            values.extend(range(first, first + min(count, room) * step, step))
    return values


# Packets, and messages between actors.


def packet_count(packet: Any) -> int:
    """Return how many objects :func:`packet_objects` yields for a packet."""
    return len(packet) if isinstance(packet, Publishes) else 1


def packet_objects(packet: Any, *, hides_names: bool = False) -> Iterator[dict[str, Any]]:
    """Yield the fields of a packet, from a client or from the broker.

    ``hides_names``: without the properties that may name the client.
    """
    if hides_names:
        for shown in packet_objects(packet):
            for name in _WITH_NAMES:
                shown.get("properties", {}).pop(name, None)
            if isinstance(packet, (Auth, Disconnect)):  # CONNECT has none any more
                shown.pop("user", None)
            yield shown
    elif isinstance(packet, Publishes):
        for publish in packet:
            yield from packet_objects(publish)
    elif isinstance(packet, SentMessage):
        more = {"identifiers": packet.identifiers[:LISTED], "alias": packet.alias}
        present = {name: value for name, value in more.items() if value}
        yield {"type": "PUBLISH", **_fields(packet.publish), **present}
    elif isinstance(packet, Acks):
        runs = to_runs(packet.packet_ids)[:LISTED]
        yield {"type": packet.kind.name, "packet_ids": runs, "count": len(packet)}
    elif isinstance(packet, Answer):
        yield {"type": packet.kind.name, **_fields(packet)}
    else:
        yield {"type": type(packet).__name__.upper(), **_fields(packet)}


def message_object(message: Any) -> tuple[str, dict[str, Any]]:
    """Return the name and the fields of a message to an actor."""
    if isinstance(message, list):
        return "Retained", {"count": len(message), "messages": _retained(message)}
    name = "Stop" if isinstance(message, _ActorStop) else type(message).__name__.lstrip("_")
    make = _MESSAGES_MADE.get(type(message))
    return name, make(message) if make is not None else {}


def _fields(value: Any) -> dict[str, Any]:
    """Return the fields of a packet or message that have a value."""
    shown: dict[str, Any] = {}
    names = getattr(value, "_fields", ()) or getattr(value, "__dataclass_fields__", ())
    for name in names:
        field = getattr(value, name)
        if field is None or field in ((), [], {}, b"") or name == "kind":
            continue
        if name in _SECRETS:
            shown[name] = True
        elif name == "payload":
            # What a will says is for those who get it.
            shown |= {"size": len(field)} if isinstance(value, Will) else payload_fields(field)
        elif isinstance(field, bytes) and name in ("codes", "topic"):
            shown[name] = list(field[:LISTED]) if name == "codes" else topic_text(field)
            if name == "codes" and len(field) > LISTED:
                shown["count"] = len(field)
        elif name == "block":
            shown["properties"] = _fields(decode_message_properties(field))
        elif name == "properties" and isinstance(field, dict):
            shown["properties"] = {
                PROPERTIES[identifier].name: _bounded(item, _DEPTH)
                for identifier, item in field.items()
                if identifier != AUTHENTICATION_DATA
            }
        elif field or name != "packet_id":
            shown[_SHORTER_NAMES.get(name, name)] = _bounded(field, _DEPTH)
            if isinstance(field, list) and len(field) > LISTED:
                shown["count"] = len(field)
    return shown


def _bounded(value: Any, depth: int) -> Any:
    """Return a value as JSON; objects that are neither packets nor actors as their type."""
    if isinstance(value, str):
        return short(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Enum):
        return value.name.lower()
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return [_bounded(item, depth - 1) for item in value[:LISTED]] if depth else []
    if isinstance(value, dict):
        kept = islice(value.items(), LISTED)
        return {short(str(key)): _bounded(item, depth - 1) for key, item in kept} if depth else {}
    if isinstance(value, bytes):
        return value[:PAYLOAD_LIMIT].hex()
    if isinstance(value, Exception):
        return short(f"{type(value).__name__}: {value}")
    if type(value).__module__ == "protocol.mqtt.packets":
        return _fields(value)
    return getattr(value, "actor_urn", None) or type(value).__name__


def _batch(batch: Batch) -> dict[str, Any]:
    messages = zip(batch.topics, batch.payloads, strict=True)
    return {
        "qos": batch.qos,
        "retain": batch.retain,
        "count": len(batch),
        "messages": [
            {
                **({"position": batch.positions[at]} if at < len(batch.positions) else {}),
                "topic": topic_text(topic),
                **payload_fields(payload),
            }
            for at, (topic, payload) in enumerate(islice(messages, _MESSAGES))
        ],
    }


def _retained(messages: list[RetainedMessage]) -> list[dict[str, Any]]:
    return [
        {"position": message.ref, "topic": short(message.topic), **payload_fields(message.payload)}
        for message in messages[:_MESSAGES]
    ]


def _outgoing(message: Outgoing) -> dict[str, Any]:
    about = _batch(message.batch)
    return {**about, "qos": message.qos, "filter": short(message.subscriber.filter)}


def _packets(message: Packets) -> dict[str, Any]:
    names = [
        packet.kind.name if isinstance(packet, Acks) else type(packet).__name__.upper()
        for packet in message.packets[:LISTED]
    ]
    names = ["PUBLISH" if name == "PUBLISHES" else name for name in names]
    count = sum(map(packet_count, message.packets))
    return {"connection": message.connection.actor_urn, "count": count, "packets": names}


_MESSAGES_MADE: dict[type, Callable[[Any], dict[str, Any]]] = {
    Authenticated: lambda message: {"result": message.verdict.result.name.lower()},
    Batch: _batch,
    Loaded: lambda message: {"count": len(message.messages)},
    Outgoing: _outgoing,
    Packets: _packets,
    Retry: lambda message: {**_fields(message.message), "attempts": message.attempts},
    bytes: lambda message: {"size": len(message)},
    **dict.fromkeys(
        (
            ActorFailed,
            ChangeQos,
            Close,
            ConnectRequest,
            ConnectionAttached,
            ConnectionDetached,
        ),
        _fields,
    ),
}
"""The fields of messages; others, such as requests of operators, are shown without fields."""


# Events.


class CachedTopics(NamedTuple):
    """The topics of the messages in memory."""

    store: MessageStore

    def get(self, ref: Position) -> Published | None:
        """Return the known facts of a message; None if it is not in memory."""
        message = self.store.get(ref)
        if message is None:
            return None
        return Published(topic_text(message.topic), len(message.payload))


def event_fields(
    event: Event, at: Position, time_ms: int, topics: Topics, payloads: Sequence[bytes] = ()
) -> dict[str, Any]:
    """Return the fields of a line about an event.

    ``event`` is the object of ``foldmq log --json``, with at most 20 items in each list, ``text``
    what ``foldmq log`` prints, and ``cut`` the lengths of the lists that are cut.
    """
    part, cut = _shortened(event)
    shown = {
        name: _bounded(value, _DEPTH)
        for name, value in event_object.event_object(part, at, time_ms, topics, None).items()
    }
    words = event_text.words(event, topics)
    if isinstance(event, MessagePublished):
        shown["count"] = event.count
        words += f": {several(map(payload_text, payloads), event.count)}" if payloads else ""
        for message, payload in zip(shown["messages"], payloads, strict=False):
            message |= payload_fields(payload)
    more = {"cut": cut} if cut else {}
    return {"position": at, "event": shown, "text": short(words, _TEXT_LIMIT), **more}


_RUNS = frozenset({"expired", "expires", "origins", "pids", "reasons", "refs", "waiting"})


def _shortened(event: Event) -> tuple[Event, dict[str, int]]:
    """Return an event with the beginning of its lists, and the lengths of those that are cut."""
    changes: dict[str, Any] = {}
    cut: dict[str, int] = {}
    for name in (field.name for field in fields(event)):
        value = getattr(event, name)
        if not isinstance(value, (list, tuple)):
            continue
        length = count_runs(list(value)) if name in _RUNS else len(value)
        if length > LISTED:
            is_run = name in _RUNS
            changes[name] = to_runs(first_of(value, LISTED)) if is_run else value[:LISTED]
            cut[name] = length
    count = getattr(event, "count", 0)
    if hasattr(event, "which") and count > LISTED:
        changes["count"] = LISTED
        cut["messages"] = count
    return replace(event, **changes), cut


def known_messages(refs: Iterable[Position], topics: Topics) -> list[dict[str, Any]]:
    """Return position, topic and size of messages."""
    return [
        {
            "position": ref,
            **({} if (facts := topics.get(ref)) is None else {"topic": facts[0], "size": facts[1]}),
        }
        for ref in refs
    ]
