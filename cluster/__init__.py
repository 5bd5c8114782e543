"""Several nodes with one log: see ``DESIGN.md`` beside this file."""
