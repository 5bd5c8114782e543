"""``foldmq web``: what the pages show, the logins and changes of their users.

The web page of a running broker: its current and past state; read-only by default.

It is a process of its own (``foldmq web``, started by ``foldmq serve``), so that neither rendering
a page nor folding the log delays a client. The current state comes from the broker's inspector, the
past from its log, by the same modules as ``foldmq log`` and ``foldmq replay``.

Tokens, roles and the audit trail of the web page.

Changes by operators on the web page: confirmed twice, and recorded with the token's name.

The past for the web page, read from the log in the background: sessions, minutes, marks.

The running broker for the web page: connection, samples and charts.
"""
