"""``foldmq mcp``: tools by which language models ask a broker and its log; they only read."""
