"""The MQTT bridge: messages to and from other MQTT brokers."""
