"""The wire protocols without I/O: MQTT in ``mqtt``, and topics as NATS subjects in ``nats``."""
