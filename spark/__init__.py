"""The log as tables, and jobs on it. See ``DESIGN.md`` beside this file."""
