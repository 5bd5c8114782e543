"""What sessions do for clients at level 5 (MQTT 5.0) that they do not do for others."""
