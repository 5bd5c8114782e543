"""The inspector: queries about a running broker, operators' changes, and ``$SYS`` topics.

``status`` contains the gauges of the status; counters are declared where they are counted,
most of them in ``actors.node.counters``.
"""
