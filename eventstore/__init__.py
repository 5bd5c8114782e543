"""The event store: typed events, packed into records, appended to a JetStream stream.

From the bottom up:

``format``
    The format of the log. ``positions``: the addresses of the log's entries. ``events``: one
    slotted dataclass per event type, validated by pydantic when a log is read. ``records``: many
    events in one JetStream message, checksummed and chained to the record before it.
``log``
    The log in JetStream. ``journal``: group commit; the events of a turn of the event loop become
    a record, and the output that depends on them (the *effects*) is released when JetStream
    confirms that the record is on disk: the gate. ``jetstream_log``: the log of a node.
    ``log_writer``: appends records. ``record_reader``: reads them, in order or one at a time.
    ``message_store``: the published messages that events refer to, from memory or from the log.
``reading``
    Reads a log without its broker, in a data directory or on a NATS server.
``nats``, ``server``
    Connections to a NATS server: one that foldmq starts, or one that already runs.
``datadir``
    The data directory.
"""
