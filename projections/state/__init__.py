"""The state that a log describes, as pure folds, its snapshots and stored form.

The state that a log describes, as pure folds, and its snapshots.

``NodeState`` folds a whole log: its sessions and the retained index. ``SessionFold`` folds one
session from that session's events alone.

What happened to clients: counts for operators, which the broker does not use itself.

``ClientHistories`` holds them; ``add_to_history`` adds an event of the log to them.

The stored form of the projections, and the loader that reads it.
"""
