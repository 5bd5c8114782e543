"""Exchange of messages between the logs of one broker: see ``DESIGN.md`` beside this file."""
