"""Projections: the state of a broker, folded from its log.

The folds are pure: they use no clock, no I/O and no randomness. The same code runs in the live
broker (each event is applied as it is appended), in recovery and replay (events are read back from
the log) and on Spark executors, so all three compute the same state.

``state``
    The folds. ``session``: one session, from that session's events alone. ``retained``: the
    retained message of every topic. ``node_state``: the whole log of one node.
``audit``
    Checks whether a log is intact, and whether it satisfies the guarantees of MQTT and foldmq.
``past``
    Reads a log: the state as of a point, the histories of sessions and messages, events as text,
    differences, and the index.
"""
