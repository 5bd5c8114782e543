"""Several nodes, one log: one node leads and writes it, the others follow it and are ready.

The log decides which node leads: of two nodes that append behind the same record, one is refused.
What the nodes tell each other (``status``, ``members``) only says when it is time to try.
``Standby`` follows and takes over; ``Leader`` says that it leads, and holds back its clients'
output when it cannot know. ``suspicion`` and ``doubt`` are the rules for both, without a clock of
their own.
"""

from typing import TYPE_CHECKING

from protocol.front_door import front_door

if TYPE_CHECKING:
    from cluster.follower import FellBehind, Follower
    from cluster.leader import Leader, LedBroker, Replaced
    from cluster.members import Members
    from cluster.standby import Leadership, Standby
    from cluster.status import NodeStatus, Role, decode_status
else:
    __getattr__ = front_door(
        __name__,
        {
            "follower": "FellBehind Follower",
            "leader": "LedBroker Leader Replaced",
            "members": "Members",
            "standby": "Leadership Standby",
            "status": "NodeStatus Role decode_status",
        },
    )

__all__ = [
    "FellBehind",
    "Follower",
    "Leader",
    "Leadership",
    "LedBroker",
    "Members",
    "NodeStatus",
    "Replaced",
    "Role",
    "Standby",
    "decode_status",
]
