"""What an audit found, as somebody is told of it: text, JSON, and one HTML page with plots.

``text`` and ``json_report`` need nothing but Python; ``page`` needs matplotlib. All of them take an
``Outcome`` and do nothing with Spark. Names that clients chose are shown harmless everywhere.
"""
