"""The jobs on a log: audit, recovery check, rebuild, archive."""
