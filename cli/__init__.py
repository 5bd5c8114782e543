"""The ``foldmq`` command: settings, composition root, and a small MQTT client for a first try."""
