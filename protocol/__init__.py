"""Wire protocols without I/O: MQTT packets and topics, and MQTT topics as NATS subjects."""
