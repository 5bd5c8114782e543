"""The normative statements of MQTT 3.1.1, chapter by chapter, over real sockets."""
