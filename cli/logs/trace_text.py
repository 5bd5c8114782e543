"""Lines of a live trace as text, with everything that clients choose escaped.

An event is what ``foldmq log`` prints; packets and messages between actors are their fields.
"""

import base64
import binascii
from collections.abc import Iterator, Mapping
from typing import Any

from cli.common import text
from eventstore.format.positions import format_position
from eventstore.reasons import close_text
from projections.past.event_text import reason_text
from protocol.mqtt.packets import ConnectCode

Line = Mapping[str, Any]

_NAME = 60
_WHO = 24
_WIDTH, _WIDTH_WHO = 16, 20
_PAYLOAD = 40
_LISTED = 5
_V5_REASONS = len(ConnectCode)
"""Return codes of a CONNACK before MQTT 5 are below."""
_ARROWS = {"packet_in": "<-", "gets": "<-", "packet_out": "->", "sends": "->"}


def trace_text(line: Line, *, who: bool = False, log: str = "") -> str:
    """Return a line with time, actor and event.

    ``who`` also prints the client, for traces of several clients, and ``log`` a short name of the
    log, for traces of several logs.
    """
    try:
        actor = text.escaped(str(line.get("actor")))
        client = line.get("client")
        if who and client is not None:
            actor = f"{actor} {text.name(str(client), _WHO)}"
        moment = text.clock(int(line["ms"])).partition(" ")[2]
        where = f"{text.escaped(log)} " if log else ""
        return f"{moment} {where}{actor:<{_WIDTH_WHO if who else _WIDTH}} {_what(line)}"
    except (KeyError, TypeError, ValueError, AttributeError):
        # A later version may use other fields.
        return text.escaped(text.json_line(line), text.PAYLOAD_LIMIT)


def _what(line: Line) -> str:
    """Return the text of a line without time and actor."""
    kind, what = text.escaped(str(line.get("kind"))), text.escaped(str(line.get("what")))
    if kind in _ARROWS:
        problem = f": {text.escaped(line['text'])}" if "text" in line else ""
        return f"{_ARROWS[kind]} {_receiver(line)}{what}{problem}{_fields_of(line)}"
    if kind == "event":
        lengths = [f"{text.escaped(name)}: {n:,} in all" for name, n in line.get("cut", {}).items()]
        more = f" ({', '.join(lengths)})" if lengths else ""
        shown = text.printable(line["text"])
        return f"event {format_position(line['position'])} {what}: {shown}{more}"
    if kind == "publish":
        return f"published{_fields_of(line)}"
    if kind == "route":
        many = f"{line['count']:,} messages " if line["count"] > 1 else ""
        topic = text.name(line["topic"], _NAME)
        if not line["total"]:
            return f"{many}{topic} has no receiver" if not many else f"{many}have no receiver"
        verb = "go to" if many else f"{topic} goes to"
        return f"{many}{verb} {text.several(map(_target, line['targets']), line['total'])}"
    if kind == "fails":
        return f"fails: {what}"
    if kind == "closes":
        return f"closes: {close_text(str(line['what']))}"
    return kind if kind in ("starts", "ends") else f"{kind} {what}"


def _receiver(line: Line) -> str:
    """Return where a message goes."""
    if "to" not in line:
        return ""
    client = line.get("to_client")
    to = text.escaped(str(line["to"])) + (f" ({text.name(client, _WHO)})" if client else "")
    return f"{to} and {line['more']:,} more " if line.get("more") else f"{to} "


def _fields_of(line: Line) -> str:
    about = {**line.get("message", {}), **line.get("packet", {})}
    reason = about.get("reason")
    if about.pop("type", None) == "CONNACK" and isinstance(reason, int) and reason < _V5_REASONS:
        about["reason"] = ConnectCode(reason).name.replace("_", " ").lower()
    return "".join(f" {field}" for field in _fields(about))


def _fields(about: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the fields that have a value: ``qos=1``."""
    for key, value in about.items():
        name = prefix + text.escaped(key)
        if key == "position" and isinstance(value, int):
            yield f"{name}={format_position(value)}"
        elif key == "reason":
            yield f"{name}={reason_text(value) if isinstance(value, int) else close_text(value)}"
        elif isinstance(value, Mapping):
            yield from _fields(value, f"{name}.")
        elif key == "payload_base64":
            yield f"payload={_payload(value, about['size'])}"
        elif key == "packet_ids":
            yield f"{name}={text.packet_ids_text(value)}"
        elif value is True:
            yield name
        elif isinstance(value, list):
            item_text = reason_text if key == "codes" else _item
            shown = "; ".join(map(item_text, value[:_LISTED]))
            total = about.get("count", len(value))
            yield f"{name}=[{shown}{'; ...' if total > min(len(value), _LISTED) else ''}]"
        elif value not in (None, False, 0, ""):
            yield f"{name}={text.name(str(value), _NAME)}"


def _item(item: object) -> str:
    if isinstance(item, Mapping):
        return " ".join(_fields(item))
    if isinstance(item, list):
        return " ".join(text.name(str(part), _NAME) for part in item)
    return text.name(str(item), _NAME)


def _payload(encoded: str, size: int) -> str:
    """Return the beginning of a payload, quoted."""
    try:
        head = base64.b64decode(encoded)
    except binascii.Error:
        head = b""
    quoted = text.payload_text(head, _PAYLOAD).rpartition('"')[0] + '"'
    shown = len(head.decode("utf-8", "surrogateescape"))
    return quoted + ("..." if shown > _PAYLOAD or size > len(head) else "")


def _target(target: Mapping[str, Any]) -> str:
    shown = f"{text.name(target['client'], _NAME)} ({text.name(target['filter'], _NAME)})"
    if target["connected"]:
        return f"{shown} QoS {target['qos']}"
    return f"{shown} QoS {target['qos']} later" if target["qos"] else f"{shown} not sent, offline"
