"""The compared brokers, and a small MQTT client."""
