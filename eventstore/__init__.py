"""The event store: typed events, packed into records, appended to a JetStream stream.

From the bottom up:

``positions``
    How one entry of the log is named.
``events``
    What can happen: one slotted dataclass per event type, validated by pydantic at the edges.
``records``
    Many events in one JetStream message, checksummed and chained to the record before it.
``journal``
    Group commit: the events of a turn of the loop become a record; what depends on them (the
    *effects*) is released when JetStream says that the record is on disk: the gate.
``log``
    Reading records back: in order with their chain checked, or one message at a time.
``messages``
    The published messages that events refer to, from memory or from the log.
``embedded``, ``connection``, ``datadir``
    The NATS server that foldmq brings, or one that already runs.
"""
