"""The settings: their models, sources and flags; the environment of child processes.

The settings of ``foldmq serve``: their model, sources and flags.

The child processes of the broker: their environment, and how they end.
"""
