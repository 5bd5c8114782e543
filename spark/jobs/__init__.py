"""The jobs on a log: audit, recovery check, rebuild, archive.

The archive job: selects records to archive, and writes them to Parquet files.

The guarantees of MQTT and of foldmq, checked over whole logs: see ``pipeline.audit``.

The log is read once. ``facts.fact_scan`` converts its records into *facts*, narrow rows that are
kept on disk; everything else is computed from facts. Logs that fit into the memory of one process
are read and audited there, without Spark (``local_facts``):

- ``facts.chain_check``: checks that records and turns follow each other, on the driver, from a few
  facts;
- ``sessions.expected_deliveries``: the messages that each session must get;
- ``sessions.session_audit_task``: each session's events and expected messages, through
  ``projections.audit.session_audit.SessionAudit``;
- ``sessions.shared_rules``: each shared subscription with all its members, through
  ``projections.audit.shared_subscription_audit.SharedAudit``;
- ``retained_rules``: the history of every retained topic, by native windows; ``local_retained``
  for small logs;
- ``checkpoint_rules``, ``duplicate_rule``, ``ownership_rule``: messages carried over cuts, repeated
  deliveries, sessions on several nodes; ``local_repetitions`` for small logs.

The audit of the logs of one broker beside each other: what one owes to another.

``broker_logs`` finds the logs that belong together, ``log_comparison`` compares them, with
``projections.audit.exchange_audit``. This is plain Python that reads the logs side by side:
each log in a task of its own if Spark is used, and in this process otherwise.

The facts of an audit: narrow rows made from the records of a log; and the audit's outcome.

The audit of sessions: their expected messages, and whether their events keep the guarantees.

Rebuilds the state of a broker, every projection, from the log alone.

:func:`rebuild` runs one of the :data:`JOBS`. Sessions and queues are folded by the broker's own
fold, session by session; retained messages, packet identifiers and wills are native Spark SQL.
``state_starts`` returns the position from which the state of a cut log is known.

The recovery check: whether a restarted broker has the state of its log.
"""
