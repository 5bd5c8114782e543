"""Several nodes, one log: one node leads and writes it, the others follow it and are ready.

The log decides which node leads: of two nodes that append behind the same record, one is refused.
What the nodes tell each other (``status``, ``members``) only says when it is time to try.
``Standby`` follows and takes over; ``Leader`` says that it leads, and holds back its clients'
output when it cannot know. ``failure_detector`` and ``leadership_check`` are the rules for both,
without a clock of their own.
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
