"""What sessions do for clients at level 5 (MQTT 5.0) that they do not do for others."""

from actors.session.mqtt5.delivery_encoder import WIRES5, DeliveryEncoder, left_of

__all__ = ["WIRES5", "DeliveryEncoder", "left_of"]
