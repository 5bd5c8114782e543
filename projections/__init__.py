"""What follows from a log: states, answers, audits; pure. See ``DESIGN.md`` beside this file."""
