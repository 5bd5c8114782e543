"""MQTT 5 without I/O: its additions to MQTT 3.1 and 3.1.1.

``protocol.mqtt`` has the values, the rules for topics, and the ``Decoder``, which reads the packets
of an MQTT 5 client with a ``PacketDecoderV5`` from here::

    decoder = Decoder(max_packet_size, v5=partial(PacketDecoderV5, max_topic_aliases))

Properties
==========

A message's properties are passed on as the bytes in which they arrived. They are checked once, in
one pass (``properties``), and the properties for the connection itself are read: the topic alias,
which is replaced by its topic here and forwarded nowhere, and the expiry, which is put first. The
rest is the *block*: no part of the broker parses it on the way. Changes for a receiver are written
beside it (``publish_encoder_v5``): the remaining seconds over its first bytes, subscription
identifiers and topic aliases after it.

In all other packets, the properties that the broker uses are read into fields.

Contents
========

Modules with a counterpart for MQTT 3.1.1 in ``protocol.mqtt`` have the same name with ``_v5``.

- ``properties``: each property, its type and the packets that may have it (``property_table``);
  those of messages, such as user properties (``message_properties``).
- ``decoder_v5``: all packets of a client; ``connect_decoder_v5``, ``publish_decoder_v5``,
  ``subscribe_decoder_v5``, ``ack_decoder_v5``: packet by packet; ``field_reader``: by field.
- ``subscription_options``: the options of a subscription, such as No Local.
- ``server_packet_encoder_v5``: the packets of a server except messages; ``publish_encoder_v5``:
  messages, once for each *variant* of the packets, which receivers share.
- ``client_packet_encoder_v5``: the packets of clients, for tools and tests;
  ``server_packet_decoder_v5``: decodes the packets of a server, for traces.

An error has the reason code that the standard names, and the violated statement of MQTT 5.0. Where
a requirement of the standard has no number, MQTT-4.13.1-1 is used: a packet that is malformed or
violates the protocol closes the connection.
"""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from protocol.mqtt5.client_packet_encoder_v5 import (
        encode_auth,
        encode_connect,
        encode_disconnect,
        encode_publish,
        encode_subscribe,
        encode_unsubscribe,
    )
    from protocol.mqtt5.decoder_v5 import PacketDecoderV5
    from protocol.mqtt5.field_reader import check_topic_filter
    from protocol.mqtt5.properties import (
        MAX_PROPERTIES,
        MAX_PROPERTY_BYTES,
        MessageProperties,
        ReceivedProperties,
        decode_message_properties,
        encode_message_properties,
        encode_properties,
        expiry_of,
        is_payload_format_broken,
        known_properties,
        properties_object,
        read_publish_properties,
        with_length,
        with_remaining_expiry,
    )
    from protocol.mqtt5.publish_encoder_v5 import (
        AliasNumbers,
        PacketVariant,
        PublishEncoderV5,
        SentAliases,
        TopicAliasMode,
        prepare_publishes,
    )
    from protocol.mqtt5.server_packet_decoder_v5 import Answer, SentMessage, read_server_packets_v5
    from protocol.mqtt5.server_packet_encoder_v5 import (
        NO_EXPLANATION,
        ConnackProperties,
        Explanation,
        encode_acks_v5,
        encode_connack_v5,
        encode_explained_ack,
        encode_explained_acks,
        encode_server_auth,
        encode_server_disconnect,
        encode_suback_v5,
        encode_unsuback_v5,
    )
    from protocol.mqtt5.shared_filters import SHARE, split_share
    from protocol.mqtt5.subscription_options import NO_LOCAL, RETAIN_AS_PUBLISHED, RETAIN_HANDLING
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "client_packet_encoder_v5": (
                "encode_auth encode_connect encode_disconnect encode_publish encode_subscribe "
                "encode_unsubscribe"
            ),
            "decoder_v5": "PacketDecoderV5",
            "field_reader": "check_topic_filter",
            "properties": (
                "MAX_PROPERTY_BYTES MAX_PROPERTIES MessageProperties ReceivedProperties "
                "decode_message_properties encode_message_properties encode_properties "
                "expiry_of is_payload_format_broken known_properties properties_object "
                "read_publish_properties with_length with_remaining_expiry"
            ),
            "publish_encoder_v5": (
                "AliasNumbers PacketVariant PublishEncoderV5 SentAliases TopicAliasMode "
                "prepare_publishes"
            ),
            "server_packet_decoder_v5": "Answer SentMessage read_server_packets_v5",
            "server_packet_encoder_v5": (
                "ConnackProperties Explanation NO_EXPLANATION encode_acks_v5 encode_connack_v5 "
                "encode_explained_ack encode_explained_acks encode_server_auth "
                "encode_server_disconnect encode_suback_v5 encode_unsuback_v5"
            ),
            "shared_filters": "SHARE split_share",
            "subscription_options": "NO_LOCAL RETAIN_AS_PUBLISHED RETAIN_HANDLING",
        },
    )

__all__ = [
    "MAX_PROPERTIES",
    "MAX_PROPERTY_BYTES",
    "NO_EXPLANATION",
    "NO_LOCAL",
    "RETAIN_AS_PUBLISHED",
    "RETAIN_HANDLING",
    "SHARE",
    "AliasNumbers",
    "Answer",
    "ConnackProperties",
    "Explanation",
    "MessageProperties",
    "PacketDecoderV5",
    "PacketVariant",
    "PublishEncoderV5",
    "ReceivedProperties",
    "SentAliases",
    "SentMessage",
    "TopicAliasMode",
    "check_topic_filter",
    "decode_message_properties",
    "encode_acks_v5",
    "encode_auth",
    "encode_connack_v5",
    "encode_connect",
    "encode_disconnect",
    "encode_explained_ack",
    "encode_explained_acks",
    "encode_message_properties",
    "encode_properties",
    "encode_publish",
    "encode_server_auth",
    "encode_server_disconnect",
    "encode_suback_v5",
    "encode_subscribe",
    "encode_unsuback_v5",
    "encode_unsubscribe",
    "expiry_of",
    "is_payload_format_broken",
    "known_properties",
    "prepare_publishes",
    "properties_object",
    "read_publish_properties",
    "read_server_packets_v5",
    "split_share",
    "with_length",
    "with_remaining_expiry",
]
