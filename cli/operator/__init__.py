"""Commands for a running broker: inspection, ``kick``, ``restart``, ``rm`` and ``purge``."""
