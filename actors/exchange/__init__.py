"""Exchange of messages between the logs of one node, each of which has a broker.

A session belongs to one log. Each broker follows the logs of the others. It appends the messages
that take effect there and concern its own sessions to its log, with the deliveries and with the
position that it has reached, in one turn: after a crash all of these are in the log or none, so
that every message arrives exactly once. Messages of QoS 0 are in no log; the brokers send them to
each other in batches.
"""
