"""``foldmq top``: monitors a running broker, on a terminal or as text.

``foldmq top``: monitors a running broker, on a terminal or as text.

``text`` computes figures and lines from the broker's replies and is pure; ``data`` holds the
connection to the broker and its queries; ``once`` prints one frame as text or JSON; ``top_app`` and
``views`` are the full-screen view.

The connection and queries of ``foldmq top``.

The figures of ``foldmq top`` as text: rates, columns, curves and the summary.

The full-screen views of ``foldmq top``.
"""
