"""MQTT 3.1, 3.1.1 and 5 without I/O: packets, properties, topics.

One ``Decoder`` belongs to one connection, ``PublishEncoder`` encodes a batch once for all its
receivers. Modules with a counterpart for MQTT 3.1.1 have the same name with ``_v5``.

A message's properties are passed on as the bytes in which they arrived. They are checked once, in
one pass, and the properties for the connection itself are read: the topic alias, which is replaced
by its topic here and forwarded nowhere, and the expiry, which is put first. The rest is the
*block*: no part of the broker parses it on the way. Changes for a receiver are written beside it
(``publish_encoder_v5``): the remaining seconds over its first bytes, subscription identifiers and
topic aliases after it. In all other packets, the properties that the broker uses are read into
fields.

An error has the reason code that the standard names, and the violated statement of MQTT 5.0. Where
a requirement of the standard has no number, MQTT-4.13.1-1 is used: a packet that is malformed or
violates the protocol closes the connection.
"""
