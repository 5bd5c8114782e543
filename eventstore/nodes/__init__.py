"""Messages between the nodes of a cluster, over the connection of their log."""

from typing import TYPE_CHECKING

from protocol.front_door import front_door

if TYPE_CHECKING:
    from eventstore.nodes.node_messages import LeaderAnswer, NodeMessages, ask_nodes
else:
    __getattr__ = front_door(__name__, {"node_messages": "LeaderAnswer NodeMessages ask_nodes"})

__all__ = ["LeaderAnswer", "NodeMessages", "ask_nodes"]
