"""The guarantees of MQTT and of foldmq, checked over whole logs: see ``pipeline.audit``.

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
"""
