"""MQTT 5 without I/O: what level 5 has that MQTT 3.1 and 3.1.1 have not.

``protocol.mqtt`` has the values, the rules for topics, and the ``Decoder``, which reads the packets
of a client at level 5 with a ``LevelReader`` from here::

    decoder = Decoder(max_packet_size, level5=partial(LevelReader, max_topic_aliases))

Properties
==========

A message's properties travel as the bytes they came in. They are checked once, in one pass
(``property_block``), and what the connection itself must obey is read from them: the topic alias,
which stands for a topic here and goes nowhere else, and the expiry, which is put first. What
remains is the *block*: no part of the broker opens it on the way. What changes on the way out is
written beside it (``publish_writer``): the seconds that are left over its first bytes, subscription
identifiers and topic aliases behind it.

Properties that the broker obeys, of all other packets, are read into fields.

Where things are
================

- ``property_table``: each property, what it is and where it may stand; ``property_block``: blocks.
- ``level_reader``: all that a client sends; ``connect_packet``, ``publish_columns``,
  ``subscription_packets``, ``ack_packets``: packet by packet; ``packet_fields``: by field.
- ``answers``: what a server sends but messages; ``publish_writer``: messages, once for each *wire*,
  the way in which receivers differ.
- ``client_writer``: what clients send, for tools and tests; ``answer_reader``: what a server sends,
  read back, for traces.

An error has the reason code that the standard names, and the statement of MQTT 5.0 that was broken.
Where a sentence of the standard has no number, MQTT-4.13.1-1 stands for it: a packet that is
malformed or breaks the protocol closes the connection.
"""

from typing import TYPE_CHECKING

from protocol.front_door import front_door

if TYPE_CHECKING:
    from protocol.mqtt5 import answers, client_writer
    from protocol.mqtt5.answer_reader import Answer, SentMessage, read_answers
    from protocol.mqtt5.answers import NO_EXPLANATION, ConnackProperties, Explanation
    from protocol.mqtt5.level_reader import LevelReader
    from protocol.mqtt5.packet_fields import SHARE, check_topic_filter, split_share
    from protocol.mqtt5.property_block import (
        MAX_BLOCK,
        MessageBlock,
        MessageProperties,
        count_down,
        encode_block,
        expiry_of,
        is_payload_format_broken,
        known_blocks,
        message_block,
        message_properties,
        properties_object,
        read_message_block,
        with_length,
    )
    from protocol.mqtt5.publish_writer import (
        AliasNumbers,
        AliasUse,
        PublishEncoder5,
        SentAliases,
        Wire,
        prepare,
    )
    from protocol.mqtt5.subscription_packets import NO_LOCAL, RETAIN_AS_PUBLISHED, RETAIN_HANDLING
else:
    __getattr__ = front_door(
        __name__,
        {
            "client_writer": "client_writer",
            "answer_reader": "Answer SentMessage read_answers",
            "answers": "answers ConnackProperties Explanation NO_EXPLANATION",
            "level_reader": "LevelReader",
            "packet_fields": "SHARE check_topic_filter split_share",
            "property_block": (
                "MAX_BLOCK MessageBlock MessageProperties count_down encode_block "
                "expiry_of is_payload_format_broken known_blocks message_block "
                "message_properties properties_object read_message_block with_length"
            ),
            "publish_writer": "AliasNumbers AliasUse PublishEncoder5 SentAliases Wire prepare",
            "subscription_packets": "NO_LOCAL RETAIN_AS_PUBLISHED RETAIN_HANDLING",
        },
    )

__all__ = [
    "MAX_BLOCK",
    "NO_EXPLANATION",
    "NO_LOCAL",
    "RETAIN_AS_PUBLISHED",
    "RETAIN_HANDLING",
    "SHARE",
    "AliasNumbers",
    "AliasUse",
    "Answer",
    "ConnackProperties",
    "Explanation",
    "LevelReader",
    "MessageBlock",
    "MessageProperties",
    "PublishEncoder5",
    "SentAliases",
    "SentMessage",
    "Wire",
    "answers",
    "check_topic_filter",
    "client_writer",
    "count_down",
    "encode_block",
    "expiry_of",
    "is_payload_format_broken",
    "known_blocks",
    "message_block",
    "message_properties",
    "prepare",
    "properties_object",
    "read_answers",
    "read_message_block",
    "split_share",
    "with_length",
]
