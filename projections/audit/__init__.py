"""The audit of sessions: checks whether a log satisfies the guarantees of MQTT and foldmq.

``rules`` contains the table of all rules, ``single_event_rules`` the checks of an event against the
state of its session.
"""
