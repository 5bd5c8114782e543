"""The table of the audit's rules, and the violation of a rule.

``projections.audit.session_audit`` checks the rules about one session, ``spark.audit`` all of them
over whole logs.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, Self

if TYPE_CHECKING:
    from eventstore.format import Position


class Rule(StrEnum):
    """A rule: its name, what is checked (and counted), and its promise.

    The order is that of reports.
    """

    checked: str
    """What is counted as checked; ``spark.audit.statistics`` has the figures under this name."""
    promise: str

    def __new__(cls, name: str, checked: str, promise: str) -> Self:
        """Return the member for a row of the table."""
        rule = str.__new__(cls, name)
        rule._value_ = name
        rule.checked = checked
        rule.promise = promise
        return rule

    CHAIN = (
        "chain",
        "records",
        "the records follow each other without a gap, each linked to the one before",
    )
    TURN = (
        "turn",
        "records",
        "a turn is whole: its events are in one record, or in parts that follow each other",
    )
    CHECKPOINT = (
        "checkpoint",
        "checkpoints and cuts",
        "what checkpoints repeat, and what cuts carry over, is what there was",
    )
    PACKET_ID_REUSE = (
        "packet_id_reuse",
        "packet identifiers",
        "no packet identifier is given out while it is in flight",
    )
    UNDELIVERED = (
        "undelivered",
        "messages owed to sessions",
        (
            "every QoS 1 or 2 message is delivered, queued or dropped with a reason for every "
            "session that subscribed"
        ),
    )
    DROP = (
        "drop",
        "drops and denials",
        "what is dropped or denied is so for a known reason, and the reason is true",
    )
    PROGRESS = (
        "progress",
        "times that a queue could move",
        "no queue stands still while its client is connected and its window is open",
    )
    WILL = (
        "will",
        "wills",
        (
            "a will is published or discarded exactly once, as the end of its connection demands, "
            "and published as it was armed"
        ),
    )
    DELIVERED_TWICE = (
        "delivered_twice",
        "deliveries",
        "no message is delivered to a session under two packet identifiers",
    )
    QOS = (
        "qos",
        "deliveries",
        "a message is delivered at its own QoS or at the granted one, whichever is lower",
    )
    ORDER = (
        "order",
        "deliveries",
        (
            "messages of a publisher on a topic are delivered in the order in which they took "
            "effect, and again in that order after a reconnect"
        ),
    )
    NO_SUBSCRIPTION = (
        "no_subscription",
        "deliveries",
        "nothing is delivered without a subscription that matches",
    )
    ACKNOWLEDGEMENT = (
        "acknowledgement",
        "acknowledgements",
        "acknowledgements only for what was delivered, releases only for what came",
    )
    QUEUE = (
        "queue",
        "messages that left queues",
        "what leaves a queue is what stood at its head",
    )
    EXPIRY = (
        "expiry",
        "messages that expire",
        (
            "nothing is sent after it expired, nothing expires before its time, and what waits "
            "expires when its message says"
        ),
    )
    RECEIVE_MAXIMUM = (
        "receive_maximum",
        "deliveries to clients with a Receive Maximum",
        "no more deliveries are unfinished at a time than the client's Receive Maximum",
    )
    NO_LOCAL = (
        "no_local",
        "messages of subscribers with No Local",
        "a subscription with No Local does not bring a client what it published itself",
    )
    SHARED = (
        "shared",
        "messages given to members",
        (
            "a message of a shared subscription is with one member at a time, and stays with it or "
            "is returned as its QoS asks"
        ),
    )
    RETAIN_HANDLING = (
        "retain_handling",
        "subscriptions with Retain Handling",
        "retained messages are sent for a subscription only as its Retain Handling allows",
    )
    RETAINED = (
        "retained",
        "retained messages",
        "the retained message of a topic is the one that was retained last",
    )
    SESSION = (
        "session",
        "sessions",
        (
            "a session is resumed when it was to be kept, and only then, and ends for the reason "
            "that is named: it expires when its client was away for its session expiry"
        ),
    )
    OWNERSHIP = (
        "ownership",
        "connections",
        "a session has one connection at a time, and one node that owns it",
    )
    EVENT = (
        "event",
        "events",
        "events fit what was before",
    )
    STATE = (
        "state",
        "claims",
        "the broker has the state that the log tells of",
    )


RULES: Final = tuple(Rule)
"""All rules, in the order of reports."""

UNEXPECTED: Final = "unexpected_delivery"
"""A message was delivered that matches no subscription, or had been delivered before.

The open messages of one session do not tell which: it is a violation of NO_SUBSCRIPTION or of
DELIVERED_TWICE."""


class Violation(NamedTuple):
    """A place in the log where a rule is violated."""

    rule: str
    at: Position
    what: str
    """Description for a person; names that clients chose are escaped and shortened."""
    ref: Position | None = None
    """The message concerned; set for UNEXPECTED."""
    session: str | None = None
    node: str = ""
    """Name of the node; empty where there is one log."""
