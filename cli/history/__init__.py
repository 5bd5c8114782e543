"""The commands that read a log: ``log``, ``replay``, ``diff``, ``why`` and ``salvage``."""
