"""Wire protocols without I/O: MQTT and subjects of NATS. See ``DESIGN.md`` beside this file."""
