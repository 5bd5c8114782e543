"""The commands that read the log: ``log``, ``replay``, ``diff``, ``why`` and ``salvage``."""
