"""The commands that copy logs: ``backup``, ``restore`` and ``salvage``."""
