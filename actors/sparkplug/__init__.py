"""What a Sparkplug aware server adds to MQTT: the birth certificates of nodes and devices."""

from actors.sparkplug.birth_certificates import BirthCertificates

__all__ = ["BirthCertificates"]
