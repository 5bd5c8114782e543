"""Parts of sessions specific to MQTT 5 clients."""

from actors.session.mqtt5.connack import accepting_connack
from actors.session.mqtt5.delivery_encoder import VARIANTS_V5, DeliveryEncoder, remaining_properties

__all__ = ["VARIANTS_V5", "DeliveryEncoder", "accepting_connack", "remaining_properties"]
