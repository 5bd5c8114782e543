"""MQTT without I/O: decoding and encoding of packets, and matching of topics.

One ``Decoder`` belongs to one connection, ``PublishEncoder`` encodes a batch once for all its
receivers. ``docs/contribute/architecture.md`` and the module ``decoder`` describe how.
"""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from protocol.mqtt.connect_subscribe_decoder import MQTT_3_1, MQTT_3_1_1, MQTT_5
    from protocol.mqtt.decoder import MAX_CONNECT_SIZE, Decoder
    from protocol.mqtt.encoder import (
        DISCONNECT,
        PID_BYTES,
        PINGREQ,
        PINGRESP,
        SUBSCRIBE_FAILURE,
        PublishEncoder,
        encode_acks,
        encode_connack,
        encode_suback,
        encode_unsuback,
        packet_heads,
        publish_head,
    )
    from protocol.mqtt.packets import (
        BATCH_MIN,
        Acks,
        Auth,
        Connect,
        ConnectCode,
        ConnectProperties,
        Disconnect,
        Packet,
        PacketType,
        Pingreq,
        Publish,
        Publishes,
        Subscribe,
        Unsubscribe,
        UserProperties,
        Will,
        cut_payloads,
    )
    from protocol.mqtt.protocol_error import ProtocolError
    from protocol.mqtt.publish_decoder import (
        ALIKE,
        RUN,
        count_alike,
        cut_columns,
        known_topics,
        remember_topic,
    )
    from protocol.mqtt.reason_codes import (
        ENDINGS,
        FAILURE,
        FOR_CONNECT_CODES,
        FROM_CLIENTS,
        FROM_SERVERS,
        REFUSALS,
        STATEMENTS,
        ReasonCode,
        closing_string,
        code_string,
        connect_code,
        filters_string,
    )
    from protocol.mqtt.remaining_length import encode_length, read_length
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
        is_bridge_state,
        is_reserved_filter,
        is_reserved_topic,
        matches,
        split_levels,
        validate_topic_filter,
        validate_topic_name,
    )
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "connect_subscribe_decoder": "MQTT_3_1 MQTT_3_1_1 MQTT_5",
            "decoder": "Decoder MAX_CONNECT_SIZE",
            "encoder": (
                "DISCONNECT PID_BYTES PINGREQ PINGRESP PublishEncoder SUBSCRIBE_FAILURE "
                "encode_acks encode_connack packet_heads publish_head encode_suback encode_unsuback"
            ),
            "packets": (
                "Acks Auth Connect ConnectCode ConnectProperties Disconnect Packet "
                "BATCH_MIN PacketType Pingreq Publish Publishes Subscribe Unsubscribe "
                "UserProperties Will cut_payloads"
            ),
            "protocol_error": "ProtocolError",
            "publish_decoder": "ALIKE RUN count_alike cut_columns known_topics remember_topic",
            "reason_codes": (
                "ENDINGS FAILURE FOR_CONNECT_CODES FROM_CLIENTS FROM_SERVERS REFUSALS "
                "ReasonCode STATEMENTS closing_string code_string connect_code filters_string"
            ),
            "remaining_length": "encode_length read_length",
            "server_packet_decoder": (
                "Connack Pingresp ServerPacket Suback Unsuback count_server_packets "
                "read_server_packets"
            ),
            "sparkplug": "certificate_topic is_death with_timestamp",
            "topic_trie": "FilterTrie TopicTrie",
            "topics": (
                "MAX_TOPIC_BYTES RESERVED_ROOTS TopicError filters_overlap is_bridge_state "
                "is_reserved_filter is_reserved_topic matches split_levels "
                "validate_topic_filter validate_topic_name"
            ),
        },
    )

__all__ = [
    "ALIKE",
    "BATCH_MIN",
    "DISCONNECT",
    "ENDINGS",
    "FAILURE",
    "FOR_CONNECT_CODES",
    "FROM_CLIENTS",
    "FROM_SERVERS",
    "MAX_CONNECT_SIZE",
    "MAX_TOPIC_BYTES",
    "MQTT_3_1",
    "MQTT_3_1_1",
    "MQTT_5",
    "PID_BYTES",
    "PINGREQ",
    "PINGRESP",
    "REFUSALS",
    "RESERVED_ROOTS",
    "RUN",
    "STATEMENTS",
    "SUBSCRIBE_FAILURE",
    "Acks",
    "Auth",
    "Connack",
    "Connect",
    "ConnectCode",
    "ConnectProperties",
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
    "ReasonCode",
    "ServerPacket",
    "Suback",
    "Subscribe",
    "TopicError",
    "TopicTrie",
    "Unsuback",
    "Unsubscribe",
    "UserProperties",
    "Will",
    "certificate_topic",
    "closing_string",
    "code_string",
    "connect_code",
    "count_alike",
    "count_server_packets",
    "cut_columns",
    "cut_payloads",
    "encode_acks",
    "encode_connack",
    "encode_length",
    "encode_suback",
    "encode_unsuback",
    "filters_overlap",
    "filters_string",
    "is_bridge_state",
    "is_death",
    "is_reserved_filter",
    "is_reserved_topic",
    "known_topics",
    "matches",
    "packet_heads",
    "publish_head",
    "read_length",
    "read_server_packets",
    "remember_topic",
    "split_levels",
    "validate_topic_filter",
    "validate_topic_name",
    "with_timestamp",
]
