"""The properties of MQTT 5 packets (section 2.2.2).

- ``property_table``: each property, its type and the packets that may have it; a new one is one
  entry
- ``property_codec``: decodes and encodes the properties of any packet
- ``message_properties``: the properties of a PUBLISH or a will, such as user properties, which are
  forwarded to subscribers
"""
