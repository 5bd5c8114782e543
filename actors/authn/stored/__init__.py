"""Reads stored passwords: Mosquitto's hashes, and SCRAM-SHA-256 keys with their messages."""
