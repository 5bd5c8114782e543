"""The promises of MQTT and of foldmq, checked over whole logs: see :func:`spark.audit.run.audit`.

The log is read once. ``scan`` takes its records apart into *facts*, narrow rows that are kept on
disk; all else is made of those:

- ``chain``: whether records and turns follow each other, on the driver, from a few facts;
- ``expected``: which message each session had to get, by native joins;
- ``sessions``: each session's events, with what it had to get, through
  ``projections.audit.session_audit.SessionAudit``;
- ``retained``: the history of every retained topic, by native windows;
- ``checkpoints``: what was repeated and carried over cuts.
"""
