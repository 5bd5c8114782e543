"""What happened to clients: counts for operators, which the broker does not use itself.

``ClientHistories`` holds them; ``add_to_history`` adds an event of the log to them.
"""
