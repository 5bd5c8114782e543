"""The bridge: forwards messages of MQTT clients to NATS, and of NATS clients to MQTT.

:mod:`actors.bridge.bridge` has the actor, of which there is one; the other modules are its parts.
"""

from typing import TYPE_CHECKING

from protocol.front_door import front_door

if TYPE_CHECKING:
    from actors.bridge.bridge import Bridge
    from actors.bridge.bridge_stats import BridgeStats
    from actors.bridge.host import BridgeHost
else:
    __getattr__ = front_door(
        __name__,
        {
            "bridge": "Bridge",
            "bridge_stats": "BridgeStats",
            "host": "BridgeHost",
        },
    )

__all__ = [
    "Bridge",
    "BridgeHost",
    "BridgeStats",
]
