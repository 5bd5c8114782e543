"""The output of ``actors``, ``sessions``, ``retained`` and ``subscriptions``."""
