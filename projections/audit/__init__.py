"""The rules by which a log is audited, and whether its records are intact."""
