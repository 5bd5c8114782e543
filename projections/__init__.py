"""Projections: the state of a broker, folded from its log.

The folds are pure: they use no clock, no I/O and no randomness. The same code runs in the live
broker (each event is applied as it is appended), in recovery and replay (events are read back from
the log) and on Spark executors, so all three compute the same state.

``state``
    The folds. ``session``: one session, from that session's events alone. ``retained``: the
    retained message of every topic. ``node``: the whole log of one node, all its sessions and the
    retained index.
``audit``
    Checks whether a log satisfies the guarantees of MQTT and foldmq, session by session.
``storage``
    The form in which the state is stored beside the log.

The following packages read a log: they fold the records of an ``eventstore.reading.log_source.LogSource``.

``replay``
    The state as of a point, the history of a session or a message, events as text.
``comparison``
    Comparison of the log with the state of a broker and its projections, and of two points of one
    log.
``verification``
    Checks whether a log is intact.
"""
