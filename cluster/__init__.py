"""Leader election and failover for several nodes that share one log.

One node leads and writes the log; the others follow it and stand by. The log decides which node
leads: of two nodes that append behind the same record, one is refused. The messages between nodes
(``status``, ``members``) only tell a node when to try a takeover. ``Standby`` follows the log and
takes it over. ``Leader`` announces its leadership, and holds back its clients' output while it is
not certain that it still leads. ``failure_detector`` and ``leadership_check`` contain the rules for
both, without a clock of their own.
"""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from cluster.follower import FellBehind, Follower
    from cluster.leader import BrokerHooks, Leader, Replaced
    from cluster.members import Members
    from cluster.standby import Leadership, Standby
    from cluster.status import NodeStatus, Role, decode_status
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "follower": "FellBehind Follower",
            "leader": "BrokerHooks Leader Replaced",
            "members": "Members",
            "standby": "Leadership Standby",
            "status": "NodeStatus Role decode_status",
        },
    )

__all__ = [
    "BrokerHooks",
    "FellBehind",
    "Follower",
    "Leader",
    "Leadership",
    "Members",
    "NodeStatus",
    "Replaced",
    "Role",
    "Standby",
    "decode_status",
]
