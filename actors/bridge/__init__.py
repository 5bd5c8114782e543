"""The exchange of messages with NATS clients.

The bridge: forwards messages of MQTT clients to NATS, and of NATS clients to MQTT.

:mod:`actors.bridge.bridge` contains the actor, of which there is one; the other modules are its
parts.

Properties of MQTT 5 at the bridge: headers and reply subjects of messages to and from NATS.

The bridges of several logs: the home of a topic, and the reports between them.
"""
