"""Messages between the nodes of a cluster, over the connection of their log."""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from eventstore.nodes.cluster_messages import (
        LeaderAnswer,
        NodeMessages,
        ask_nodes,
        ask_to_move,
    )
else:
    __getattr__ = lazy_exports(
        __name__, {"cluster_messages": "LeaderAnswer NodeMessages ask_nodes ask_to_move"}
    )

__all__ = ["LeaderAnswer", "NodeMessages", "ask_nodes", "ask_to_move"]
