"""Several nodes with one log: election, failover, clients passed on to the leader.

Leader election and failover for several nodes that share one log.

One node leads and writes the log; the others follow it and stand by. The log decides which node
leads: of two nodes that append behind the same record, one is refused. The messages between nodes
(``status``, ``members``) only tell a node when to try a takeover. ``Standby`` follows the log and
takes it over. ``Leader`` announces its leadership, and holds back its clients' output while it is
not certain that it still leads. ``failure_detector`` and ``leadership_check`` contain the rules for
both, without a clock of their own.

Edges accept clients and pass their bytes on to the leader of the log that has their session.

``Edges`` accepts clients on a node that follows, through the same stages as the leader's listeners
and within the same limits. It opens one connection to the leader for each client; clients wait,
*parked*, while there is none (``leader_link``). ``PeerListener`` is the leader's side: it accepts
connections of other nodes. ``client_header`` contains what both say first, without sockets. With
several logs an edge finds that of a client by its identifier, with ``client_id_in``.
"""
