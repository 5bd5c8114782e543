"""Properties of MQTT 5 at the bridge: headers and reply subjects of messages to and from NATS."""
