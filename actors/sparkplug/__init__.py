"""What a Sparkplug aware server adds to MQTT: the birth certificates of nodes and devices."""
