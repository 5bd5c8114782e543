"""The web page: what a running broker is and was, for a browser; it only reads.

It is a process of its own (``foldmq web``, started by ``foldmq serve``), so that neither drawing
a page nor folding the log holds up a client. What is now comes from the broker's inspector, what
was from its log, by the same modules as ``foldmq log`` and ``foldmq replay``.
"""
