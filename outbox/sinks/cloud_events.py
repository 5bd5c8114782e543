"""Messages as CloudEvents 1.0: JSON, batches of them, and HTTP headers."""

import base64
import contextlib
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

import orjson

from eventstore.format.positions import format_position
from outbox.selection import TextCache
from outbox.sink import OutboxMessage
from protocol.mqtt.message_properties import MessageProperties, decode_message_properties

BATCH: Final = "application/cloudevents-batch+json"
STRUCTURED: Final = "application/cloudevents+json"
_JSON: Final = "application/json"
_TEXT: Final = "text/plain"
_BINARY: Final = "application/octet-stream"
_REQUIRED: Final = ("specversion", "id", "source", "type")
_TRACE: Final = ("traceparent", "tracestate")
_HEADER_SAFE: Final = " !#$&'()*+,-./:;<=>?@[]^_`{|}~"
"""Characters that the binary mode does not encode; quotes and per cent signs are."""
_NO_PROPERTIES: Final = MessageProperties()
_JSON_BEGINS: Final = frozenset(bytes((each,)) for each in b'{["-0123456789tfn \t\r\n')
"""The bytes with which a JSON text may begin."""


def event_json(message: OutboxMessage, log: str) -> bytes:
    """Return a message as a CloudEvent in JSON; one that is a CloudEvent already, as that event."""
    properties = _properties(message)
    if (properties.content_type or "").startswith(STRUCTURED) and _is_event(message.payload):
        return message.payload
    kind, data = _content(message.payload, properties)
    return orjson.dumps({**_attributes(message, log, properties, kind), **data})


class EventEncoder:
    """Encodes messages as CloudEvents in JSON, as :func:`event_json` does.

    What messages have in common is encoded once.
    """

    def __init__(self, log: str) -> None:
        self._log = log
        self._head = b'{"specversion":"1.0","id":' + orjson.dumps(f"{log}/")[:-1]
        source = orjson.dumps(f"urn:foldmq:log:{log}")
        self._middle = b'","source":%b,"type":"foldmq.message.published","subject":' % source
        self._texts = TextCache(orjson.dumps)
        """Topics and client identifiers as JSON."""
        self._time_ms, self._time = -1, b""

    def encode(self, message: OutboxMessage) -> bytes:
        """Return a message as a CloudEvent in JSON."""
        if message.block:
            return event_json(message, self._log)
        if message.time_ms != self._time_ms:
            self._time_ms, self._time = message.time_ms, _time(message.time_ms).encode()
        topic, payload = self._texts[message.topic], message.payload
        kind, member = _content(payload, _NO_PROPERTIES)
        data = orjson.dumps(member)[1:-1]
        return b'%b%b%b%b,"time":"%b","datacontenttype":"%b","mqttqos":%d,"mqttretain":%b' % (
            *(self._head, format_position(message.position).encode(), self._middle, topic),
            *(self._time, kind.encode(), message.qos, b"true" if message.retain else b"false"),
        ) + b',"mqttclient":%b,"partitionkey":%b,%b}' % (self._texts[message.client], topic, data)


def _content(payload: bytes, properties: MessageProperties) -> tuple[str, dict[str, Any]]:
    """Return the content type of a payload, and its member of the event."""
    kind = properties.content_type or _kind_of(payload)
    is_json = _is_json(kind)
    if is_json and (not properties.content_type or _loads(payload) is not None):
        return kind, {"data": orjson.Fragment(payload)}
    if not is_json and (kind.startswith("text/") or properties.payload_format):
        with contextlib.suppress(UnicodeDecodeError):
            return kind, {"data": payload.decode()}
    return kind, {"data_base64": base64.b64encode(payload).decode()}


def _kind_of(payload: bytes) -> str:
    """Return the content type of a payload without one: JSON, text, or bytes."""
    if payload[:1] in _JSON_BEGINS and _loads(payload) is not None:
        return _JSON
    try:
        payload.decode()
    except UnicodeDecodeError:
        return _BINARY
    return _TEXT


def event_headers(message: OutboxMessage, log: str) -> dict[str, str]:
    """Return the headers of a message in the binary mode; the body is its payload."""
    properties = _properties(message)
    kind = properties.content_type or _kind_of(message.payload)
    attributes = _attributes(message, log, properties, kind)
    del attributes["datacontenttype"]
    headers = {"Content-Type": kind if kind.isascii() and kind.isprintable() else _BINARY}
    for name, value in attributes.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        headers[f"ce-{name}"] = quote(text, safe=_HEADER_SAFE)
    return headers


def _attributes(
    message: OutboxMessage, log: str, properties: MessageProperties, kind: str
) -> dict[str, Any]:
    user = dict(properties.user)
    attributes: dict[str, Any] = {
        "specversion": "1.0",
        "id": f"{log}/{format_position(message.position)}",
        "source": f"urn:foldmq:log:{log}",
        "type": "foldmq.message.published",
        "subject": message.topic,
        "time": _time(message.time_ms),
        "datacontenttype": kind,
        "mqttqos": message.qos,
        "mqttretain": message.retain,
        "mqttclient": message.client,
        "partitionkey": message.topic,
    }
    attributes |= {name: user[name] for name in _TRACE if user.get(name)}
    if all(user.get(name) for name in _REQUIRED):
        # The MQTT binding of CloudEvents: attributes are user properties.
        own = {
            name: value
            for name, value in user.items()
            if name.isascii() and name.isalnum() and name == name.lower() and value
        }
        return {**own, "datacontenttype": kind}
    return attributes


def _properties(message: OutboxMessage) -> MessageProperties:
    return decode_message_properties(message.block) if message.block else _NO_PROPERTIES


def _is_json(kind: str) -> bool:
    media = kind.partition(";")[0].strip().lower()
    return media == _JSON or media.endswith("+json")


def _loads(payload: bytes) -> tuple[Any] | None:
    """Return a JSON value in a tuple; None if it is none."""
    try:
        return (orjson.loads(payload),)
    except orjson.JSONDecodeError:
        return None


def _is_event(payload: bytes) -> bool:
    value = _loads(payload)
    return value is not None and isinstance(value[0], dict) and {*_REQUIRED} <= value[0].keys()


def _time(time_ms: int) -> str:
    moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
