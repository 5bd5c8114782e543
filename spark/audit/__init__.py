"""The promises of MQTT and of foldmq, checked over whole logs: see ``pipeline.audit``.

The log is read once. ``facts.fact_scan`` takes its records apart into *facts*, narrow rows that
are kept on disk; all else is made of those:

- ``facts.chain``: whether records and turns follow each other, on the driver, from a few facts;
- ``expected_deliveries``: which message each session had to get, by native joins;
- ``session_tasks``: each session's events, with what it had to get, through
  ``projections.audit.session_audit.SessionAudit``;
- ``retained_rules``: the history of every retained topic, by native windows;
- ``checkpoint_rules``: what was repeated and carried over cuts.
"""
