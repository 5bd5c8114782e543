"""The settings of ``foldmq serve``: their model, sources and flags."""
