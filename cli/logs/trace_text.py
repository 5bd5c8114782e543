"""Lines of a live trace as text, with everything that clients choose escaped."""

import base64
import binascii
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from cli.common import text
from eventstore.format.event_parsing import UnreadableEvent, parse_event
from eventstore.format.positions import Position, format_position
from eventstore.reasons import close_text
from projections.past.event_text import words
from projections.views.session_view import Published

Line = Mapping[str, Any]

_NAME = 60
_WHO = 24
_WIDTH, _WIDTH_WHO = 16, 20
_PAYLOAD = 40
_KNOWN = 10_000
_CODES = (
    "accepted",
    "unacceptable protocol version",
    "client identifier rejected",
    "server unavailable",
    "bad user name or password",
    "not authorized",
)
_LEVELS = {3: "MQTT 3.1", 4: "MQTT 3.1.1", 5: "MQTT 5"}


class TraceWords:
    """Converts lines to text, and remembers the topics of messages by position.

    ``who`` also prints the client of each line, for traces of several clients, and ``log`` a short
    name of their log, for traces of several logs: each log has its own positions.
    """

    def __init__(self, *, who: bool = False, log: str = "") -> None:
        self._who = who
        self._log = f"{text.escaped(log)} " if log else ""
        self._known: OrderedDict[Position, Published] = OrderedDict()

    def get(self, ref: Position) -> Published | None:
        """Return the known fields of a message."""
        return self._known.get(ref)

    def text(self, line: Line) -> str:
        """Return a line with time, actor and event."""
        try:
            return self._text(line)
        except (KeyError, TypeError, ValueError, AttributeError):
            # A later version may use other fields.
            return text.escaped(text.json_line(line), text.PAYLOAD_LIMIT)

    def _text(self, line: Line) -> str:
        self._note(line)
        actor = text.escaped(str(line.get("actor")))
        client = line.get("client")
        if self._who:
            shown = "" if client is None else f" {text.name(str(client), _WHO)}"
            actor = f"{actor}{shown}"
        moment = text.clock(int(line["ms"])).partition(" ")[2]
        width = _WIDTH_WHO if self._who else _WIDTH
        return f"{moment} {self._log}{actor:<{width}} {self.said(line)}"

    def said(self, line: Line) -> str:
        """Return the text of a line without time and actor."""
        make = _KINDS.get(str(line.get("kind")))
        if make is None:
            return f"{text.escaped(str(line.get('kind')))} {text.escaped(str(line.get('what')))}"
        return make(self, line)

    def _note(self, line: Line) -> None:
        about = line.get("message") or {}
        messages = [*line.get("messages", ()), *about.get("messages", ())]
        if line.get("kind") == "publish" and "position" in line:
            messages.append({**line["packet"], "position": line["position"]})
        for message in messages:
            if "topic" in message and "position" in message:
                known = Published(message["topic"], message.get("size", 0))
                self._known[message["position"]] = known
        while len(self._known) > _KNOWN:
            self._known.popitem(last=False)

    def event(self, line: Line) -> str:
        """Return an event in the format of ``foldmq log``."""
        raw = dict(line["event"])
        cut = line.get("cut", {})
        if "size" in line:
            # The sizes of some messages may be omitted; their sum is not.
            raw |= {"sizes": [line["size"]]}
        try:
            said = words(parse_event(raw), self)
        except (UnreadableEvent, IndexError):
            said = text.escaped(text.json_line(raw), text.PAYLOAD_LIMIT)
        lengths = (f"{text.escaped(key)}: {length:,} in all" for key, length in cut.items())
        more = f" ({', '.join(lengths)})" if cut else ""
        at, what = format_position(line["position"]), text.escaped(str(line["what"]))
        return f"event {at} {what}: {said}{more}"


def _event(of: TraceWords, line: Line) -> str:
    return of.event(line)


# Packets.


def _packet_in(_of: TraceWords, line: Line) -> str:
    if "packet" not in line:
        return f"<- {text.escaped(str(line['what']))}: {text.escaped(line.get('text', ''))}"
    return f"<- {packet_words(line['packet'])}"


def _packet_out(_of: TraceWords, line: Line) -> str:
    return f"-> {packet_words(line['packet'])}"


def packet_words(packet: Mapping[str, Any]) -> str:
    """Return a packet."""
    kind = text.escaped(str(packet["type"]))
    make = _PACKETS.get(kind)
    said = make(packet) if make is not None else ""
    return f"{kind} {said}" if said else kind


def _publish_words(packet: Mapping[str, Any]) -> str:
    parts = [f"QoS {packet['qos']}"]
    parts += [word for word in ("retain", "dup") if packet.get(word)]
    if packet.get("packet_id") is not None:
        parts.append(f"packet {packet['packet_id']}")
    return f"{' '.join(parts)} {_message(packet)}"


def _connect_words(packet: Mapping[str, Any]) -> str:
    parts = [_LEVELS.get(packet["level"], f"protocol level {packet['level']}")]
    parts += ["clean"] if packet["clean"] else []
    if packet["keep_alive"]:
        parts.append(f"keep alive {packet['keep_alive']} s")
    if packet["user"] is not None:
        parts.append(f"user {text.name(packet['user'], _NAME)}")
    if packet.get("password"):
        parts.append("with a password")
    will = packet["will"]
    if will is not None:
        retained = " retain" if will["retain"] else ""
        topic = text.name(will["topic"], _NAME)
        parts.append(f"will QoS {will['qos']}{retained} {topic} {text.size(will['size'])}")
    return f"{text.name(packet['client'], _NAME)}: {', '.join(parts)}"


def _connack_words(packet: Mapping[str, Any]) -> str:
    code = packet["code"]
    said = _CODES[code] if code < len(_CODES) else f"code {code}"
    return f"{said}, session present" if packet["session_present"] else said


def _subscribe_words(packet: Mapping[str, Any]) -> str:
    filters = (f"{text.name(one, _NAME)} QoS {qos}" for one, qos in packet["filters"])
    return f"packet {packet['packet_id']}: {text.several(filters, packet['count'])}"


def _unsubscribe_words(packet: Mapping[str, Any]) -> str:
    filters = (text.name(one, _NAME) for one in packet["filters"])
    return f"packet {packet['packet_id']}: {text.several(filters, packet['count'])}"


def _suback_words(packet: Mapping[str, Any]) -> str:
    codes = (f"QoS {code}" if code < 3 else "refused" for code in packet["codes"])
    return f"packet {packet['packet_id']}: {text.several(codes, packet['count'])}"


def _acks_words(packet: Mapping[str, Any]) -> str:
    noun = "packet" if packet["count"] == 1 else "packets"
    return f"{noun} {text.packet_ids_text(packet['packet_ids'])}"


_PACKETS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "PUBLISH": _publish_words,
    "CONNECT": _connect_words,
    "CONNACK": _connack_words,
    "SUBSCRIBE": _subscribe_words,
    "SUBACK": _suback_words,
    "UNSUBSCRIBE": _unsubscribe_words,
    "UNSUBACK": lambda packet: f"packet {packet['packet_id']}",
    "PUBACK": _acks_words,
    "PUBREC": _acks_words,
    "PUBREL": _acks_words,
    "PUBCOMP": _acks_words,
}


def _message(message: Mapping[str, Any]) -> str:
    return f"{text.name(message['topic'], _NAME)} {text.size(message['size'])} {_payload(message)}"


def _payload(message: Mapping[str, Any]) -> str:
    """Return the beginning of a payload, quoted."""
    try:
        head = base64.b64decode(message.get("payload_base64", ""))
    except binascii.Error:
        head = b""
    quoted = text.payload_text(head, _PAYLOAD).rpartition('"')[0] + '"'
    shown = len(head.decode("utf-8", "surrogateescape"))
    return quoted + ("..." if shown > _PAYLOAD or message["size"] > len(head) else "")


# Messages between actors.


def _gets(_of: TraceWords, line: Line) -> str:
    if "packet" in line:
        return f"<- {text.escaped(line['message']['connection'])} {packet_words(line['packet'])}"
    return f"<- {_object_text(line)}"


def _sends(_of: TraceWords, line: Line) -> str:
    client = line.get("to_client")
    to = text.escaped(str(line["to"])) + (f" ({text.name(client, _WHO)})" if client else "")
    if line.get("more"):
        to += f" and {line['more']:,} more"
    said = packet_words(line["packet"]) if "packet" in line else _object_text(line)
    return f"-> {to} {said}"


def _object_text(line: Line) -> str:
    what = text.escaped(str(line["what"]))
    about = line.get("message") or {}
    make = _OBJECT_TEXTS.get(what)
    said = make(about) if make is not None else _fields(about)
    return f"{what}: {said}" if said else what


def _batch_words(about: Mapping[str, Any]) -> str:
    flags = f"QoS {about['qos']}" + (" retain" if about.get("retain") else "")
    if "filter" in about:
        flags += f" for {text.name(about['filter'], _NAME)}"
    messages = about["messages"]
    if about["count"] == 1 and messages:
        return f"{flags}, {_message(messages[0])}"
    topics = dict.fromkeys(text.name(one["topic"], _NAME) for one in messages)
    more = ", ..." if about["count"] > len(messages) else ""
    return f"{flags}, {text.count_of(about['count'], 'message')}: {', '.join(topics)}{more}"


def _retained_words(about: Mapping[str, Any]) -> str:
    topics = (text.name(one["topic"], _NAME) for one in about["messages"])
    return f"{text.count_of(about['count'], 'message')}: {text.several(topics, about['count'])}"


def _packets_words(about: Mapping[str, Any]) -> str:
    counted = text.count_of(about["count"], "packet")
    kinds = dict.fromkeys(text.escaped(str(kind)) for kind in about["packets"])
    return f"{counted}: {', '.join(kinds)}"


def _connection_words(about: Mapping[str, Any]) -> str:
    return f"{text.escaped(about['connection'])} {_connect_words(about)}"


def _detached_words(about: Mapping[str, Any]) -> str:
    said = close_text(about["reason"])
    return f"{text.escaped(about['connection'])} {said}" if about.get("connection") else said


def _fields(about: Mapping[str, Any]) -> str:
    return " ".join(f"{text.escaped(key)} {text.name(str(value))}" for key, value in about.items())


_OBJECT_TEXTS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "ConnectionAttached": _connection_words,
    "Batch": _batch_words,
    "ConnectRequest": _connection_words,
    "Close": lambda about: close_text(about["reason"]),
    "ConnectionDetached": _detached_words,
    "Outgoing": _batch_words,
    "Packets": _packets_words,
    "Retained": _retained_words,
}


# Topics.


def _published(_of: TraceWords, line: Line) -> str:
    packet = line["packet"]
    said = f"published {_publish_words(packet)}"
    if line.get("will"):
        said = f"will {said}"
    if "position" in line:
        said += f" at {format_position(line['position'])}"
    return f"{said}, waiting for PUBREL" if line.get("waits") else said


def _routed(_of: TraceWords, line: Line) -> str:
    many = f"{line['count']:,} messages " if line["count"] > 1 else ""
    topic = text.name(line["topic"], _NAME)
    if not line["total"]:
        return f"{many}{topic} has no receiver" if not many else f"{many}have no receiver"
    verb = "go to" if many else f"{topic} goes to"
    return f"{many}{verb} {text.several(map(_target, line['targets']), line['total'])}"


def _target(target: Mapping[str, Any]) -> str:
    said = f"{text.name(target['client'], _NAME)} ({text.name(target['filter'], _NAME)})"
    if target["connected"]:
        return f"{said} QoS {target['qos']}"
    return f"{said} QoS {target['qos']} later" if target["qos"] else f"{said} not sent, offline"


_KINDS: dict[str, Callable[[TraceWords, Line], str]] = {
    "packet_in": _packet_in,
    "packet_out": _packet_out,
    "gets": _gets,
    "sends": _sends,
    "event": _event,
    "publish": _published,
    "route": _routed,
    "starts": lambda _of, _line: "starts",
    "ends": lambda _of, _line: "ends",
    "fails": lambda _of, line: f"fails: {text.escaped(str(line['what']))}",
    "closes": lambda _of, line: f"closes: {close_text(str(line['what']))}",
}
