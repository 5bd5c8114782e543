"""Rebuilds the state of a broker, every projection, from the log alone.

:func:`rebuild` runs one of the :data:`JOBS`. Sessions and queues are folded by the broker's own
fold, session by session; retained messages, packet identifiers and wills are native Spark SQL.
``state_starts`` returns the position from which the state of a cut log is known.
"""
