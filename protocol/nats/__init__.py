"""MQTT topics as NATS subjects, and the headers of NATS messages."""
