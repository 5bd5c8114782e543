"""Factories: parts of a node, built from the settings.

Access, limits, listeners, options of the broker, and connections between nodes.
"""
