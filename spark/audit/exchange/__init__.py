"""The audit of the logs of one broker beside each other: what one owes to another.

``broker_logs`` finds the logs that belong together, ``log_comparison`` compares them, with
``projections.verification.exchange_audit``. This is plain Python that reads the logs side by side:
each log in a task of its own if Spark is used, and in this process otherwise.
"""
