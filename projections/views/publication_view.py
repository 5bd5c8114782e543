"""A message that took effect in a log, as a typed row, as JSON and as text."""

from dataclasses import dataclass
from typing import Any

from eventstore import display
from eventstore.format.positions import Position, format_position
from eventstore.format.sealing import readable_block
from eventstore.format.stored_properties import expiry_ms
from eventstore.partitions import short_name
from projections.views.state_view import properties_text
from protocol.mqtt.message_properties import properties_object


@dataclass(frozen=True, slots=True)
class PublicationView:
    """A message that took effect."""

    log: str
    """Its log; empty if there is only one."""
    position: Position
    """Where it took effect: at QoS 2 with its PUBREL."""
    time_ms: int
    """When it took effect, Unix time in milliseconds."""
    topic: str
    qos: int
    retain: bool
    """Whether it was published with RETAIN 1."""
    publisher: str
    """The session that published it."""
    payload: bytes
    block: bytes = b""
    """Its properties, as they were received."""
    expires: int = 0
    """Unix time in seconds at which it expires; 0: never."""
    will: bool = False

    @property
    def size(self) -> int:
        """Size of the payload in bytes."""
        return len(self.payload)


def publication_object(view: PublicationView, *, payload: bool = True) -> dict[str, Any]:
    """Return a message as an object of ``--json``; ``payload``: with its payload."""
    fields: dict[str, Any] = {
        **({"log": view.log} if view.log else {}),
        "position": format_position(view.position),
        "at": display.iso(view.time_ms),
        "topic": view.topic,
        "qos": view.qos,
        "retain": view.retain,
        "publisher": view.publisher,
        "size": view.size,
    }
    if view.will:
        fields["will"] = True
    if view.expires:
        fields["expires_at"] = display.iso(expiry_ms(view.expires))
    properties = properties_object(readable_block(view.block))
    if properties:
        fields["properties"] = properties
    return {**fields, **display.payload_field(view.payload)} if payload else fields


def publication_line(view: PublicationView, *, payload: bool = True, log_width: int = 0) -> str:
    """Return a message on a line; ``log_width`` is the width of the column of logs, 0: none."""
    log = f" {short_name(view.log):<{log_width}}" if log_width else ""
    about = f"QoS {view.qos}, {display.size(view.size)}, from {display.name(view.publisher)}"
    if view.will:
        about += ", will"
    if view.retain:
        about += ", retained" if view.payload else ", clears the retained message"
    if view.expires:
        about += f", expires {display.clock(expiry_ms(view.expires))}"
    shown = f": {display.payload_text(view.payload)}" if payload else ""
    properties = properties_text(properties_object(readable_block(view.block)))
    return (
        f"{display.clock(view.time_ms)}{log} {format_position(view.position):>8}  "
        f"{display.name(view.topic)}  {about}{properties}{shown}"
    )
