"""Connections to a NATS server, requests over them, messages between nodes.

Connections to a NATS server, and requests to its JetStream.

``connect`` returns a ``DirectClient``: nats-py's client with a faster path for appends. A
``BatchClient`` transfers messages in batches, a ``RequestClient`` sends requests on one subject.
The modules are loaded lazily: nats-py takes a third of a second.

Messages between the nodes of a cluster, over the connection of their log.
"""
