"""The bridge: forwards messages of MQTT clients to NATS, and of NATS clients to MQTT.

:mod:`actors.bridge.bridge` contains the actor, of which there is one; the other modules are its
parts.
"""
