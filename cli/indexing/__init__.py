"""The index of the log: ``foldmq log index``, and the process that writes it beside the broker."""
