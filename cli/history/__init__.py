"""The commands on a log: ``log``, ``replay``, ``diff``, ``why`` and ``verify``."""
