"""The audit of logs: see ``DESIGN.md`` beside this file."""
