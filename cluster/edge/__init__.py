"""Edges: nodes that do not lead accept clients and pass their bytes on to the leader.

``Edges`` accepts clients on a node that follows, through the same stages as the leader's listeners
and within the same limits. It opens one connection to the leader for each client; clients wait,
*parked*, while there is none. ``PeerListener`` is the leader's side: it accepts connections of
other nodes. ``client_header`` contains what both say first, without sockets.
"""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from cluster.edge.client_header import BadClientHeader, ForwardedClient, PeerAnswer
    from cluster.edge.edge_listeners import Edges, LeaderPlace
    from cluster.edge.peer_listener import PeerListener
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "client_header": "BadClientHeader ForwardedClient PeerAnswer",
            "edge_listeners": "Edges LeaderPlace",
            "peer_listener": "PeerListener",
        },
    )

__all__ = [
    "BadClientHeader",
    "Edges",
    "ForwardedClient",
    "LeaderPlace",
    "PeerAnswer",
    "PeerListener",
]
