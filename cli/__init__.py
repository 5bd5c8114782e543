"""The ``foldmq`` command. See ``DESIGN.md`` beside this file."""
