"""Sessions: publishing, delivery, subscriptions: see ``DESIGN.md`` beside this file.

State of the delivery to a client that is kept only in memory is apart from the fold of its session.
"""
