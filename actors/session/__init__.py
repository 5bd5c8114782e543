"""Sessions: publishing, delivery, subscriptions, and what actors of a node share.

Sessions: decisions, publishing, routing, subscriptions, delivery and backpressure.

State of the delivery to a client that is kept only in memory, not in the fold of its session.

Parts of sessions specific to MQTT 5 clients.

What a Sparkplug aware server adds to MQTT: the birth certificates of nodes and devices.
"""
