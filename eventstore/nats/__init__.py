"""Connections to a NATS server, requests over them, messages between nodes.

``connect`` returns a ``DirectClient``: nats-py's client with a faster path for appends. A
``BatchClient`` transfers messages in batches, a ``RequestClient`` sends requests on one subject.
"""
