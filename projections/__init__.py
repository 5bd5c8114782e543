"""Projections: the state of a broker, folded from its log.

The folds are pure: no clock, no I/O of their own, no randomness. The same code runs in the live
broker (each event is applied as it is appended), in recovery and replay (events are read back from
the log) and on Spark executors, so all three arrive at the same state.

``state``
    The folds. ``session``: one session, from that session's events alone. ``retained``: the
    retained message of every topic. ``node``: the whole log of one node, all its sessions and the
    retained index.
``audit``
    Checks whether a log keeps the promises of MQTT and foldmq, session by session.
``storage``
    The form in which the state is stored beside the log.

The following packages read a log: they await the records of an ``eventstore.reading.LogSource`` and
fold them.

``replay``
    The state as of a point, the history of a session or a message, events as text.
``comparison``
    Comparison of the log with the state of a broker and its projections, and of two moments of
    one log.
``verification``
    Checks whether a log is intact.
"""
