"""Answers about the past: states, stories, reasons, differences, the index.

They read a log through ``eventstore.reading.log_source.LogSource``, never write, and use no clock.
A ``progress`` callback reports their progress. A position is one of a single log, so a moment of
all logs is a time.
"""
