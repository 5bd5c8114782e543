"""The bridge: forwards messages of MQTT clients to NATS, and of NATS clients to MQTT.

:mod:`actors.bridge.bridge` contains the actor, of which there is one; the other modules are its
parts.
"""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from actors.bridge.bridge import Bridge
    from actors.bridge.bridge_stats import BridgeStats
    from actors.bridge.bridge_supervisor import BridgeSupervisor
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "bridge": "Bridge",
            "bridge_stats": "BridgeStats",
            "bridge_supervisor": "BridgeSupervisor",
        },
    )

__all__ = [
    "Bridge",
    "BridgeStats",
    "BridgeSupervisor",
]
