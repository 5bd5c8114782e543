"""The live broker: actors on the event loop.

``kernel``
    pykka's programming model on an event loop: mailboxes, one dispatcher, supervision.
``configuration``, ``node``
    The validated options of the broker; the node's counters and backpressure.
``authn``, ``authz``, ``limits``
    Authentication, authorization, and the limits on clients.
``transports``, ``connection``
    From sockets to connections, and one actor for each connection: bytes <-> packets, keep alive.
``routing``, ``sharing``
    The subscription index: the subscriptions that match a topic; shared subscriptions.
``fast_path``
    Packets of all connections, decided as columns in one pass of a turn.
``session``
    One actor for each client identifier, and one for each subscription of a connected one:
    life cycle, packets, subscriptions, publishing, delivery. The shared state of all actors.
    ``session.decisions``: pure decisions.
``bridge``
    MQTT <-> NATS.
``maintenance``
    Recovery, projections, retention, attestation.
``inspection``, ``tracing``
    Queries about a running broker, operators' changes, metrics, and live traces.
``session_admission``
    From a verified client to its session.
``takeover_throttle``
    Clients that fight over a client identifier.
``session_registry``, ``message_loading``
    The actors of all sessions: activated, frozen, expired; messages that only the log has.
``supervision``
    Restart of failed sessions.
``broker``
    The root: accepts, supervises, recovers, drains.
"""
