"""MQTT 3.1, 3.1.1 and 5 without I/O: packets, properties, topics.

MQTT without I/O: decoding and encoding of packets, and matching of topics.

One ``Decoder`` belongs to one connection, ``PublishEncoder`` encodes a batch once for all its
receivers. ``docs/contribute/architecture.md`` and the module ``decoder`` describe how.

MQTT 5 without I/O: its additions to MQTT 3.1 and 3.1.1.

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

The properties of MQTT 5 packets (section 2.2.2).

- ``property_table``: each property, its type and the packets that may have it; a new one is one
  entry
- ``property_codec``: decodes and encodes the properties of any packet
- ``message_properties``: the properties of a PUBLISH or a will, such as user properties, which are
  forwarded to subscribers
"""
