"""Answers about the past: states, stories, reasons, differences, the index.

Comparison of states: of a log with a broker or its projections, and of two points of one log.

``Comparison`` folds a log once and runs checks at their positions, ``find_divergences`` folds it
a second time to find where each difference began.

Explains what happened to a message: its history in all logs, as text and as JSON.

``find_histories`` reads it. If there is none, ``explain_no_message`` returns possible reasons.

The index of a log: built from its records, and used to answer queries without a full scan.

Queries of a log: its state as of a point, its events as text, the topics of its messages.

They read a log through ``eventstore.reading.log_source.LogSource``, never write, and use no clock. A
``progress`` callback reports their progress.

Answers about all logs of a node or cluster: their events by time, and their states joined.

A position is one of a single log, so a moment of all logs is a time. Errors about one of the logs
name it. The history of a message in several logs is in ``projections.past``.

The histories of messages: what the log records of a message and of its copy for each session.

``StoryBuilder`` assembles them from records.
"""
