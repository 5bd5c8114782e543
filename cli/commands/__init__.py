"""The commands for a running broker and for its log, one module each.

The commands that copy logs: ``backup``, ``restore`` and ``salvage``.

``foldmq status`` and ``foldmq doctor``: the health of a broker, and remedies for problems.

The commands on a log: ``log``, ``replay``, ``diff``, ``why`` and ``verify``.

The output of ``actors``, ``sessions``, ``retained`` and ``subscriptions``.

Commands for a running broker: inspection, ``kick``, ``restart``, ``rm`` and ``purge``.
"""
