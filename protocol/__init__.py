"""Wire protocols without I/O: MQTT packets and topics, and MQTT topics as NATS subjects.

Nothing in ``protocol`` opens a socket, reads a clock or knows what a broker is. It imports only
the standard library, keeps no state but that of one connection's unfinished packet, and can be
tested with bytes alone.

How it works
============

One ``Decoder`` belongs to one connection. The shell around it hands it whatever the network
brought, in whatever pieces, and is handed the packets that are complete::

    decoder = Decoder(max_packet_size=1_048_576)
    for packet in decoder.feed(data):
        ...
    if decoder.error is not None:
        ...  # answer decoder.error.connack if there is one, then close

``feed`` does not raise. A client that breaks the standard is no exception for a broker: the
packets it sent before are obeyed, then its connection is closed. So the error is a value, a
``ProtocolError`` that names the normative statement that was broken, and it is set once and for
all. The decoder also holds the two rules that need to know what came before: the first packet is
a CONNECT, and there is no second. All other rules about what may be sent when (packet identifiers
in use, keep alive, quotas) belong to the session, which has the state to judge.

Versions: ``protocol.mqtt`` decodes MQTT 3.1 and 3.1.1, ``protocol.mqtt5`` what MQTT 5 has besides.
Of a CONNECT of any other level only the level is read, so that it can be answered with return code
0x01. The ``properties`` of packets are None below MQTT 5.

Batches
=======

A broker in Python cannot afford an object per message, so there is none. Consecutive PUBLISH
packets with the same first byte are one ``Publishes``, consecutive acknowledgements of one type
are one ``Acks``; both are columns (lists of topics, of packet identifiers, of payloads), made
and consumed by operations that run in C over the whole list. ``protocol.mqtt.publish_decoder`` says
how such a run is read, ``PublishEncoder`` how messages are encoded once and rendered for each
receiver.
How the network cuts the bytes decides where one batch ends and the next begins, and nothing else:
the sequence of messages is always the same.

Topics stay raw bytes on this path: they are validated, once per different topic, and not decoded.

Where things are in ``mqtt``
============================

- ``packets``: the values; ``protocol_error``: the error.
- ``decoder``: one connection; ``publish_decoder``: PUBLISH and acknowledgements;
  ``connect_subscribe_decoder``: the rest; ``remaining_length``: the Remaining Length.
- ``encoder``: everything a server sends;
  ``server_packet_decoder``: what a server sends, read back, for traces.
- ``topics``: what is a legal topic name or filter, and which are the broker's own;
  ``topic_trie``: matching; ``sparkplug``: the rules of Sparkplug.

Nothing a client sends costs more than linear time or memory: lengths are checked before bodies
are kept, unfinished packets are not looked at again until they are complete, tries do not recurse,
and the one cache is bounded.
"""
