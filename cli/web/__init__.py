"""``foldmq web``: what the pages show, the logins and changes of their users.

It is a process of its own (``foldmq web``, started by ``foldmq serve``), so that neither rendering
a page nor folding the log delays a client. The current state comes from the broker's inspector, the
past from its log, by the same modules as ``foldmq log`` and ``foldmq replay``.
"""
