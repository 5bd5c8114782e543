"""The event store: typed events, packed into records, appended to a JetStream stream.

From the bottom up:

``format``
    The format of the log. ``positions``: how one entry of the log is named. ``events``: one slotted
    dataclass per event type, validated by pydantic at the edges. ``records``: many events in one
    JetStream message, checksummed and chained to the record before it.
``log``
    The log in JetStream. ``journal``: group commit; the events of a turn of the loop become a
    record, and what depends on them (the *effects*) is released when JetStream says that the record
    is on disk: the gate. ``jetstream_log``: the log of a node. ``log_writer``: appending records.
    ``record_reader``: reading them, in order or one at a time. ``message_store``: the published
    messages that events refer to, from memory or from the log.
``reading``
    Reading a log without its broker, in a data directory or on a NATS server.
``nats``, ``server``
    Connections to a NATS server: the one that foldmq brings, or one that already runs.
``datadir``
    The data directory.
"""
