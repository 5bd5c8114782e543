"""Edges accept clients and pass their bytes on to the leader of the log that has their session.

``Edges`` accepts clients on a node that follows, through the same stages as the leader's listeners
and within the same limits. It opens one connection to the leader for each client; clients wait,
*parked*, while there is none (``leader_link``). ``PeerListener`` is the leader's side: it accepts
connections of other nodes. ``client_header`` contains what both say first, without sockets. With
several logs an edge finds that of a client by its identifier, with ``client_id_in``.
"""
