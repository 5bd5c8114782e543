"""Leader election and failover for several nodes that share one log.

One node leads and writes the log; the others follow it and stand by. The log decides which node
leads: of two nodes that append behind the same record, one is refused. The messages between nodes
(``status``, ``members``) only tell a node when to try a takeover. ``Standby`` follows the log and
takes it over. ``Leader`` announces its leadership, and holds back its clients' output while it is
not certain that it still leads. ``failure_detector`` and ``leadership_check`` contain the rules for
both, without a clock of their own.
"""
