"""The running broker: actors on one event loop. See ``DESIGN.md`` beside this file."""
