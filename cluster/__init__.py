"""Several nodes with one log: election, failover, clients passed on to the leader.

One node leads and writes the log; the others follow it and stand by. The log decides which node
leads: of two nodes that append behind the same record, one is refused. The messages between nodes
(``status``, ``members``) only tell a node when to try a takeover. ``Standby`` follows the log and
takes it over. ``Leader`` announces its leadership, and holds back its clients' output while it is
not certain that it still leads. ``failure_detector`` and ``leadership_check`` contain the rules for
both, without a clock of their own.

``Edges`` accepts clients on a node that follows and passes their bytes on to the leader of the log
that has their session (``leader_link``); clients wait, *parked*, while there is no leader.
``PeerListener`` is the leader's side.
"""
