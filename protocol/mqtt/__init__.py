"""MQTT 3.1, 3.1.1 and 5 without I/O: packets, properties, topics.

An error has the reason code that the standard names, and the violated statement of MQTT 5.0. Where
a requirement of the standard has no number, MQTT-4.13.1-1 is used: a packet that is malformed or
violates the protocol closes the connection.
"""
