"""What sessions do for MQTT 5 clients (MQTT 5.0) that they do not do for others."""

from actors.session.mqtt5.delivery_encoder import WIRES_V5, DeliveryEncoder, remaining_properties

__all__ = ["WIRES_V5", "DeliveryEncoder", "remaining_properties"]
