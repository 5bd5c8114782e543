"""The log: events in records of a JetStream stream. See ``DESIGN.md`` beside this file."""
