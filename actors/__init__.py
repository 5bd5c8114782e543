"""The live broker: actors on the event loop.

``kernel``
    pykka's programming model on an event loop: mailboxes, one dispatcher, supervision.
``broker``
    The root: accepts, supervises, recovers, drains; the sessions of the node.
``node``
    The node's counters, backpressure and activation.
``access``, ``limits``
    Authentication and permissions; the limits on clients and the validated options.
``transports``, ``connection``
    From sockets to connections, and one actor for each connection: bytes <-> packets, keep alive.
``routing``, ``sharing``
    The subscription index: the subscriptions that match a topic; shared subscriptions.
``fast_path``
    Packets of all connections, decided as columns in one pass of a turn.
``session``
    One actor for each client identifier, and one for each subscription of a connected one.
``bridge``, ``exchange``
    MQTT <-> NATS; messages between the logs of one node.
``maintenance``
    Recovery, projections, retention, attestation.
``inspection``
    Queries about a running broker, operators' changes, metrics, and live traces.
"""
