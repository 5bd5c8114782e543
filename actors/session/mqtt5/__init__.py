"""Parts of sessions specific to MQTT 5 clients."""
