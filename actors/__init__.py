"""The live broker: actors on the event loop.

``kernel``
    pykka's programming model on an event loop: mailboxes, one dispatcher, supervision.
``options``, ``node``
    What the broker's behaviour depends on; the node's counters.
``authn``, ``authz``, ``limits``
    Authentication, authorization, and the limits on what clients may take.
``transports``, ``connection``
    Between a socket and a connection, and one actor for each: bytes <-> packets, keep alive.
``routing``
    From a topic to the subscriptions that match it.
``session``
    One actor for each client identifier, and one for each subscription of a connected one:
    deciding, publishing, delivering. What all actors of a node share.
``bridge``
    MQTT <-> NATS.
``maintenance``
    Recovery, projections, retention, attestation.
``inspection``, ``tracing``
    What can be asked of a running broker, and live traces.
``supervision``
    What becomes of a session that failed.
``broker``
    The root: accepts, supervises, recovers, drains.
"""
