"""The normative statements of MQTT 5.0, chapter by chapter, over real sockets."""
