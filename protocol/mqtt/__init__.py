"""MQTT 3.1 and 3.1.1 without I/O: bytes in, packets out, and back; topics and how they match.

One ``Decoder`` belongs to one connection, ``PublishEncoder`` encodes a batch once for all its
receivers. ``docs/architecture.md`` and the module ``decoder`` say how.
"""

from protocol.mqtt.connect_subscribe_decoder import MQTT_3_1, MQTT_3_1_1
from protocol.mqtt.decoder import MAX_CONNECT_SIZE, Decoder
from protocol.mqtt.encoder import (
    DISCONNECT,
    PID_BYTES,
    PINGREQ,
    PINGRESP,
    SUBSCRIBE_FAILURE,
    PublishEncoder,
    acks,
    connack,
    publish_head,
    suback,
    unsuback,
)
from protocol.mqtt.packets import (
    Acks,
    Connect,
    ConnectCode,
    Disconnect,
    Packet,
    PacketType,
    Pingreq,
    Publish,
    Publishes,
    Subscribe,
    Unsubscribe,
    Will,
)
from protocol.mqtt.protocol_error import ProtocolError
from protocol.mqtt.server_packet_decoder import (
    Connack,
    Pingresp,
    ServerPacket,
    Suback,
    Unsuback,
    count_server_packets,
    read_server_packets,
)
from protocol.mqtt.sparkplug import certificate_topic, is_death, with_timestamp
from protocol.mqtt.topic_trie import FilterTrie, TopicTrie
from protocol.mqtt.topics import (
    MAX_TOPIC_BYTES,
    RESERVED_ROOTS,
    TopicError,
    filters_overlap,
    is_reserved_filter,
    is_reserved_topic,
    matches,
    split_levels,
    validate_topic_filter,
    validate_topic_name,
)

__all__ = [
    "DISCONNECT",
    "MAX_CONNECT_SIZE",
    "MAX_TOPIC_BYTES",
    "MQTT_3_1",
    "MQTT_3_1_1",
    "PID_BYTES",
    "PINGREQ",
    "PINGRESP",
    "RESERVED_ROOTS",
    "SUBSCRIBE_FAILURE",
    "Acks",
    "Connack",
    "Connect",
    "ConnectCode",
    "Decoder",
    "Disconnect",
    "FilterTrie",
    "Packet",
    "PacketType",
    "Pingreq",
    "Pingresp",
    "ProtocolError",
    "Publish",
    "PublishEncoder",
    "Publishes",
    "ServerPacket",
    "Suback",
    "Subscribe",
    "TopicError",
    "TopicTrie",
    "Unsuback",
    "Unsubscribe",
    "Will",
    "acks",
    "certificate_topic",
    "connack",
    "count_server_packets",
    "filters_overlap",
    "is_death",
    "is_reserved_filter",
    "is_reserved_topic",
    "matches",
    "publish_head",
    "read_server_packets",
    "split_levels",
    "suback",
    "unsuback",
    "validate_topic_filter",
    "validate_topic_name",
    "with_timestamp",
]
