"""MQTT without I/O: decoding and encoding of packets, and matching of topics.

One ``Decoder`` belongs to one connection, ``PublishEncoder`` encodes a batch once for all its
receivers. ``docs/architecture.md`` and the module ``decoder`` describe how.
"""
