"""The state that a log describes, as pure folds, and its snapshots.

``NodeState`` folds a whole log: its sessions and the retained index. ``SessionFold`` folds one
session from that session's events alone.
"""
