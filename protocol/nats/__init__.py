"""MQTT topics and filters as NATS subjects, and the headers of NATS messages."""
