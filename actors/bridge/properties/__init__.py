"""Properties of MQTT 5 at the bridge: headers and reply subjects of messages to and from NATS."""

from actors.bridge.properties.dropped_properties import PropertyLosses
from actors.bridge.properties.property_reader import PropertyReader
from actors.bridge.properties.property_writer import PropertyWriter, header_room
from actors.bridge.properties.reply_subjects import Answered, ReplySubjects

__all__ = [
    "Answered",
    "PropertyLosses",
    "PropertyReader",
    "PropertyWriter",
    "ReplySubjects",
    "header_room",
]
