"""MQTT and NATS as one: what MQTT clients publish reaches NATS clients, and the other way round.

:mod:`actors.bridge.bridge` has the actor, of which there is one; the other modules are its parts.
"""
