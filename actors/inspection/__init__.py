"""The inspector, operators' changes, ``$SYS`` topics, status, live traces.

Gauges of the status are in ``status_metrics``; counters are declared where they are counted, most
of them in ``actors.node.counters``.
"""
