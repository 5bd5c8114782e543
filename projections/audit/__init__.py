"""The rules by which a log is audited, and whether its records are intact.

The audit of sessions: checks whether a log satisfies the guarantees of MQTT and foldmq.

``rules`` contains the table of all rules, ``single_event_rules`` the checks of an event against the
state of its session.

The rules of the audit, and the checks that need more than one event and a session's state.

These checks concern drops, ended sessions, connections, wills, waiting messages and checkpoints.

Checks whether a log is intact: its records, events, checkpoints, and messages of other logs.
"""
