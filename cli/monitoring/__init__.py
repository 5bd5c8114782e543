"""Monitoring of a broker: metrics, health, systemd notification and the NATS micro service."""
