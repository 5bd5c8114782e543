"""Parts of sessions specific to MQTT 5 clients."""

from actors.session.mqtt5.delivery_encoder import WIRES_V5, DeliveryEncoder, remaining_properties

__all__ = ["WIRES_V5", "DeliveryEncoder", "remaining_properties"]
