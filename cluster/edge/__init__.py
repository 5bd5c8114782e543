"""Edges accept clients and pass their bytes on to the leader of the log that has their session.

``Edges`` accepts clients on a node that follows, through the same stages as the leader's listeners
and within the same limits. It opens one connection to the leader for each client; clients wait,
*parked*, while there is none (``leader_link``). ``PeerListener`` is the leader's side: it accepts
connections of other nodes. ``client_header`` contains what both say first, without sockets. With
several logs an edge finds that of a client by its identifier, with ``client_id_in``.
"""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from cluster.edge.client_header import BadClientHeader, ForwardedClient, PeerAnswer
    from cluster.edge.connect_peek import Peeked, client_id_in
    from cluster.edge.edge_client import EdgeClient, Upstream
    from cluster.edge.edge_listeners import Edges
    from cluster.edge.leader_link import LeaderPlace
    from cluster.edge.peer_listener import PeerListener
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "client_header": "BadClientHeader ForwardedClient PeerAnswer",
            "connect_peek": "Peeked client_id_in",
            "edge_client": "EdgeClient Upstream",
            "edge_listeners": "Edges",
            "leader_link": "LeaderPlace",
            "peer_listener": "PeerListener",
        },
    )

__all__ = [
    "BadClientHeader",
    "EdgeClient",
    "Edges",
    "ForwardedClient",
    "LeaderPlace",
    "Peeked",
    "PeerAnswer",
    "PeerListener",
    "Upstream",
    "client_id_in",
]
