"""Projections: what the log says the state is.

Pure folds: no clock, no I/O of their own, no randomness. The very same code runs in the live
broker (each event is applied as it is appended), in recovery and replay (events read back from
the log) and on Spark executors, so that the three can only agree.

``state``
    The folds. ``session``: one session, from that session's events alone. ``retained``: the
    retained message of every topic. ``node``: everything that the log of one node says, all its
    sessions and the retained index.
``audit``
    Whether a log keeps what MQTT and foldmq promise, session by session.
``storage``
    The form in which the state is stored beside the log.

What reads a log awaits the records of an ``eventstore.reading.LogSource`` and folds them:

``replay``
    The state as of a point, the history of a session, events as text, what became of a message.
``comparison``
    The state of a broker and its projections beside the log; two moments of one log.
``verification``
    Whether a log is intact.
"""
