"""The properties of MQTT 5 packets (section 2.2.2).

- ``property_table``: each property, its type and the packets that may have it; a new one is one
  entry
- ``property_codec``: decodes and encodes the properties of any packet
- ``message_properties``: the properties of a PUBLISH or a will, such as user properties, which are
  forwarded to subscribers
"""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from protocol.mqtt5.properties import property_table
    from protocol.mqtt5.properties.message_properties import (
        MessageProperties,
        ReceivedProperties,
        decode_message_properties,
        encode_message_properties,
        expiry_of,
        is_payload_format_broken,
        known_properties,
        properties_object,
        read_publish_properties,
        split_properties,
        with_remaining_expiry,
    )
    from protocol.mqtt5.properties.property_codec import (
        BYTES_A_PACKET,
        LARGE_PROPERTIES,
        MAX_PROPERTIES,
        MAX_PROPERTY_BYTES,
        Value,
        decode_properties,
        decode_text,
        encode_properties,
        encode_property,
        find_properties,
        iter_properties,
        malformed,
        properties_cost,
        read_variable,
        violation,
        with_length,
    )
    from protocol.mqtt5.properties.property_table import (
        FROM_CLIENTS,
        FROM_SERVERS,
        SUBSCRIPTION_IDENTIFIER,
        TOPIC_ALIAS,
    )
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "message_properties": (
                "MessageProperties ReceivedProperties decode_message_properties "
                "encode_message_properties expiry_of is_payload_format_broken known_properties "
                "properties_object read_publish_properties split_properties with_remaining_expiry"
            ),
            "property_codec": (
                "BYTES_A_PACKET LARGE_PROPERTIES MAX_PROPERTY_BYTES MAX_PROPERTIES Value "
                "decode_properties decode_text encode_properties encode_property find_properties "
                "iter_properties malformed properties_cost read_variable violation with_length"
            ),
            "property_table": (
                "FROM_CLIENTS FROM_SERVERS SUBSCRIPTION_IDENTIFIER TOPIC_ALIAS property_table"
            ),
        },
    )

__all__ = [
    "BYTES_A_PACKET",
    "FROM_CLIENTS",
    "FROM_SERVERS",
    "LARGE_PROPERTIES",
    "MAX_PROPERTIES",
    "MAX_PROPERTY_BYTES",
    "SUBSCRIPTION_IDENTIFIER",
    "TOPIC_ALIAS",
    "MessageProperties",
    "ReceivedProperties",
    "Value",
    "decode_message_properties",
    "decode_properties",
    "decode_text",
    "encode_message_properties",
    "encode_properties",
    "encode_property",
    "expiry_of",
    "find_properties",
    "is_payload_format_broken",
    "iter_properties",
    "known_properties",
    "malformed",
    "properties_cost",
    "properties_object",
    "property_table",
    "read_publish_properties",
    "read_variable",
    "split_properties",
    "violation",
    "with_length",
    "with_remaining_expiry",
]
