"""Sessions: publishing, delivery, subscriptions, and what actors of a node share.

State of the delivery to a client that is kept only in memory is apart from the fold of its session.
``decisions`` contains pure decisions.
"""
