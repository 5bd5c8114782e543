"""The web page of a running broker: its current and past state; read-only by default.

It is a process of its own (``foldmq web``, started by ``foldmq serve``), so that neither rendering
a page nor folding the log delays a client. The current state comes from the broker's inspector, the
past from its log, by the same modules as ``foldmq log`` and ``foldmq replay``.
"""
