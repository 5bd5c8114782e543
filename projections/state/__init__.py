"""The state that a log describes, as pure folds, its snapshots and stored form.

``NodeState`` folds a whole log: its sessions and the retained index. ``SessionFold`` folds one
session from that session's events alone. ``ClientHistories`` counts what happened to clients, for
operators; the broker does not use it itself.
"""
