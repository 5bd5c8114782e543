"""The inspector, operators' changes, ``$SYS`` topics, status, live traces.

The inspector: queries about a running broker, operators' changes, and ``$SYS`` topics.

``status`` contains the gauges of the status; counters are declared where they are counted,
most of them in ``actors.node.counters``.

The status of a broker: counters, gauges, and their Prometheus metrics.

Live traces: the messages, output and events of actors.
"""
