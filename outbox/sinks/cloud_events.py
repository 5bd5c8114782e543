"""Messages as CloudEvents 1.0: JSON, batches of them, and HTTP headers."""

import base64
import binascii
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

import orjson

from eventstore.format.positions import format_position
from outbox.selection import LONG
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
_KNOWN_TEXTS: Final = 4096
_JSON_BEGINS: Final = frozenset(bytes((each,)) for each in b'{["-0123456789tfn \t\r\n')
"""The bytes with which a JSON text may begin."""


def event_json(message: OutboxMessage, log: str) -> bytes:
    """Return a message as a CloudEvent in JSON; one that is a CloudEvent already, as that event."""
    properties = _properties(message)
    if (properties.content_type or "").startswith(STRUCTURED) and _is_event(message.payload):
        return message.payload
    attributes = _attributes(message, log, properties)
    payload, kind = message.payload, attributes["datacontenttype"]
    if _is_json(kind) and _loads(payload) is not None:
        return orjson.dumps({**attributes, "data": orjson.Fragment(payload)})
    if not _is_json(kind) and (kind.startswith("text/") or properties.payload_format):
        try:
            return orjson.dumps({**attributes, "data": payload.decode()})
        except UnicodeDecodeError:
            pass
    return orjson.dumps({**attributes, "data_base64": base64.b64encode(payload).decode()})


class EventEncoder:
    """Encodes messages as CloudEvents in JSON, as :func:`event_json` does.

    What messages have in common is encoded once.
    """

    def __init__(self, log: str) -> None:
        self._log = log
        self._head = b'{"specversion":"1.0","id":' + orjson.dumps(f"{log}/")[:-1]
        source = orjson.dumps(f"urn:foldmq:log:{log}")
        self._middle = b'","source":%b,"type":"foldmq.message.published","subject":' % source
        self._texts: dict[str, bytes] = {}
        """Topics and client identifiers as JSON."""
        self._time_ms, self._time = -1, b""

    def encode(self, message: OutboxMessage) -> bytes:
        """Return a message as a CloudEvent in JSON."""
        if message.block:
            return event_json(message, self._log)
        if message.time_ms != self._time_ms:
            self._time_ms, self._time = message.time_ms, _time(message.time_ms).encode()
        topic, payload = self._text(message.topic), message.payload
        kind, data = _data_json(payload)
        return b'%b%b%b%b,"time":"%b","datacontenttype":"%b","mqttqos":%d,"mqttretain":%b' % (
            *(self._head, format_position(message.position).encode(), self._middle, topic),
            *(self._time, kind, message.qos, b"true" if message.retain else b"false"),
        ) + b',"mqttclient":%b,"partitionkey":%b,%b}' % (self._text(message.client), topic, data)

    def _text(self, text: str) -> bytes:
        known = self._texts.get(text)
        if known is None:
            if len(self._texts) >= _KNOWN_TEXTS:
                self._texts.clear()
            known = orjson.dumps(text)
            if len(text) < LONG:
                self._texts[text] = known
        return known


def _data_json(payload: bytes) -> tuple[bytes, bytes]:
    """Return the content type of a payload without properties, and its member of the event."""
    if payload[:1] in _JSON_BEGINS and _loads(payload) is not None:
        return _JSON.encode(), b'"data":' + payload
    try:
        return _TEXT.encode(), b'"data":' + orjson.dumps(payload.decode())
    except UnicodeDecodeError:
        encoded = binascii.b2a_base64(payload, newline=False)
        return _BINARY.encode(), b'"data_base64":"%b"' % encoded


def event_headers(message: OutboxMessage, log: str) -> dict[str, str]:
    """Return the headers of a message in the binary mode; the body is its payload."""
    attributes = _attributes(message, log, _properties(message))
    kind = attributes.pop("datacontenttype")
    headers = {"Content-Type": kind if kind.isascii() and kind.isprintable() else _BINARY}
    for name, value in attributes.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        headers[f"ce-{name}"] = quote(text, safe=_HEADER_SAFE)
    return headers


def _attributes(message: OutboxMessage, log: str, properties: MessageProperties) -> dict[str, Any]:
    user = dict(properties.user)
    attributes: dict[str, Any] = {
        "specversion": "1.0",
        "id": f"{log}/{format_position(message.position)}",
        "source": f"urn:foldmq:log:{log}",
        "type": "foldmq.message.published",
        "subject": message.topic,
        "time": _time(message.time_ms),
        "datacontenttype": properties.content_type or _kind_of(message.payload),
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
        return {**own, "datacontenttype": attributes["datacontenttype"]}
    return attributes


def _properties(message: OutboxMessage) -> MessageProperties:
    return decode_message_properties(message.block) if message.block else MessageProperties()


def _kind_of(payload: bytes) -> str:
    """Return the content type of a payload without one: JSON, text, or bytes."""
    if _loads(payload) is not None:
        return _JSON
    try:
        payload.decode()
    except UnicodeDecodeError:
        return _BINARY
    return _TEXT


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
