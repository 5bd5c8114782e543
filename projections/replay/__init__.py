"""Queries of a log: its state as of a point, its events as text, the topics of its messages.

They read a log through ``eventstore.reading.log_source.LogSource``, never write, and use no clock. A
``progress`` callback reports their progress.
"""
