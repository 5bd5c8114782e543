"""Wire protocols without I/O: MQTT packets and topics, and MQTT topics as NATS subjects.

Nothing in ``protocol`` opens a socket, reads a clock or depends on the broker. It imports only the
standard library, keeps no state except that of one connection's unfinished packet, and can be
tested with bytes alone.

How it works
============

One ``Decoder`` belongs to one connection. The caller passes it the bytes from the network, in
whatever pieces they arrive, and receives the packets that are complete::

    decoder = Decoder(max_packet_size=1_048_576)
    for packet in decoder.feed(data):
        ...
    if decoder.error is not None:
        ...  # answer decoder.error.connack if there is one, then close

``feed`` does not raise: a broker must expect clients that violate the standard. The packets that
such a client sent before are processed, then its connection is closed. So the error is a value, a
``ProtocolError`` that names the violated normative statement; once set, it stays. The decoder also
enforces the two rules that depend on earlier packets: the first packet is a CONNECT, and there is
no second one. All other rules about the order of packets (packet identifiers in use, keep alive,
quotas) belong to the session, which has the necessary state.

Versions: ``decoder`` decodes MQTT 3.1 and 3.1.1, ``decoder_v5`` the additions of MQTT 5.
For a CONNECT of any other level only the level is read, so that it can be answered with return code
0x01. The ``properties`` of packets are None below MQTT 5.

Batches
=======

An object per message would be too slow in Python, so there is none. Consecutive PUBLISH packets
with the same first byte are one ``Publishes``, consecutive acknowledgements of one type are one
``Acks``. Both consist of columns (lists of topics, of packet identifiers, of payloads), which are
built and consumed by operations that run in C over the whole list.
``protocol.mqtt.publish_decoder`` describes how such a run is read, ``PublishEncoder`` how messages
are encoded once and rendered for each receiver. The pieces in which the bytes arrive affect only
the boundaries of batches: the sequence of messages is always the same.

Topics stay raw bytes on this path: they are validated, once per distinct topic, and not decoded.

Contents of ``mqtt``
====================

- ``packets``: the values; ``protocol_error``: the error.
- ``decoder``: one connection; ``publish_decoder``: PUBLISH and acknowledgements;
  ``connect_subscribe_decoder``: the rest; ``remaining_length``: the Remaining Length.
- ``encoder``: all packets of a server;
  ``server_packet_decoder``: decodes the packets of a server, for traces.
- ``topics``: the rules for topic names and filters, and the reserved ones;
  ``topic_trie``: matching; ``sparkplug``: the rules of Sparkplug.

No input of a client costs more than linear time or memory: lengths are checked before bodies
are kept, unfinished packets are not inspected again until they are complete, tries do not recurse,
and all caches are bounded.
"""
