"""The logs that a command reads, and the running brokers that it asks.

The index of the log: ``foldmq log index``, and the process that writes it beside the broker.

Clients of a running broker over NATS: its inspector and its live traces.

The log that a command reads: flags, moments, topics; and the log store of ``foldmq serve``.
"""
