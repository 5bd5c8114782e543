"""The live broker: actors on the event loop.

``kernel``
    pykka's programming model on an event loop: mailboxes, one dispatcher, supervision.
``messages``
    What actors tell each other.
``connection``
    One actor for each socket: bytes <-> packets, keep alive, limits, back-pressure.
``session``
    One actor for each client identifier: decides; the fold of its events is its state.
``delivery``
    What a session's client gets: the window, the queue, sending again.
``publisher``
    What a session's client publishes: recorded, then routed.
``supervision``
    What becomes of a session that failed.
``recovery``
    From the log to a running broker.
``subscription``
    One actor for each subscription of a connected session.
``router``
    From a topic to the subscriptions that match it; retained messages.
``broker``
    The root: accepts, supervises, recovers, drains.
"""
