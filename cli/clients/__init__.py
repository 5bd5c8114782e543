"""The MQTT clients ``foldmq pub`` and ``foldmq sub``."""
