"""The table of the audit's rules, and the violation of a rule.

``projections.audit.session_audit`` checks the rules about one session, ``spark.jobs`` all of them
over whole logs.
"""

from enum import StrEnum
from typing import Final, NamedTuple, Self

from eventstore.display import name as shown
from eventstore.format.events import LOG_SESSION, NATS_SESSION
from eventstore.format.positions import Position
from eventstore.partitions import partition_of
from projections.state.session import SHARED_PART, SessionState
from protocol.mqtt.shared_filters import SHARE


class Rule(StrEnum):
    """A rule: its name, what is checked (and counted), and the guarantee.

    Reports have the same order.
    """

    checked: str
    """What is counted as checked; ``statistics`` has the figures under this name."""
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
        "checkpoints repeat the state as it was, and cuts carry over the messages still needed",
    )
    PACKET_ID_REUSE = (
        "packet_id_reuse",
        "packet identifiers",
        "no packet identifier is assigned while it is in flight",
    )
    UNDELIVERED = (
        "undelivered",
        "messages due to sessions",
        (
            "every QoS 1 or 2 message is delivered, queued or dropped with a reason for every "
            "session that subscribed"
        ),
    )
    DROP = (
        "drop",
        "drops and denials",
        "messages are dropped and filters denied only for a known reason, and the reason is true",
    )
    PROGRESS = (
        "progress",
        "times that a queue could be sent",
        "no queue stops while its client is connected and its window is open",
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
        "only delivered messages are acknowledged, and only received messages are released",
    )
    QUEUE = (
        "queue",
        "messages that left queues",
        "messages leave a queue from its head, and no more wait than the limits permit",
    )
    EXPIRY = (
        "expiry",
        "messages that expire",
        (
            "no message is sent after it expired or expires before its time, and a waiting message "
            "expires at the time that its publisher set"
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
        "a client does not get its own messages through a subscription with No Local",
    )
    SHARED = (
        "shared",
        "messages assigned to members",
        (
            "a message of a shared subscription is with one member at a time, and stays with it or "
            "is returned as its QoS requires"
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
    ERASURE = (
        "erasure",
        "messages on topics with erased contents, and clients with tokens",
        (
            "after the request of an erasure, what it erases is not delivered, published as a will "
            "or retained, and no client connects by an erased token"
        ),
    )
    REPLAY = (
        "replay",
        "messages read for replays",
        (
            "between two cursors of a replay, each message that took effect and matches is sent "
            "once, in that order, or counted as left out"
        ),
    )
    SESSION = (
        "session",
        "sessions",
        (
            "a session is resumed if and only if it had to be kept, and ends for the recorded "
            "reason: it expires when its client was offline for its session expiry"
        ),
    )
    OWNERSHIP = (
        "ownership",
        "connections",
        "a session has one connection at a time, and one node that owns it",
    )
    HOME = (
        "home",
        "sessions of a broker with several logs",
        (
            "a session, and the queue of a shared subscription, is in one log only: the one given "
            "by the hash of its name"
        ),
    )
    EXCHANGE = (
        "exchange",
        "messages owed to other logs",
        (
            "a log takes each message that another log owes it once, in order, in the turn of its "
            "position there"
        ),
    )
    COPY = (
        "copy",
        "messages taken from other logs",
        (
            "a message that was taken from another log has the topic, payload, QoS, RETAIN and "
            "properties that it has there"
        ),
    )
    EVENT = (
        "event",
        "events",
        "events are consistent with the state before them",
    )
    STATE = (
        "state",
        "claims",
        "the state of the broker is the state that the log describes",
    )


RULES: Final = tuple(Rule)
"""All rules, in the order of reports."""

UNEXPECTED: Final = "unexpected_delivery"
"""A message was delivered that matches no subscription, or had been delivered before.

The open messages of one session do not show which: it is a violation of NO_SUBSCRIPTION or of
DELIVERED_TWICE."""


class Violation(NamedTuple):
    """A place in the log where a rule is violated."""

    rule: str
    at: Position
    what: str
    """Description as text; names that clients chose are escaped and shortened."""
    ref: Position | None = None
    """The message concerned; set for UNEXPECTED."""
    session: str | None = None
    node: str = ""
    """Name of the node; empty if there is only one log."""


class LogPlace(NamedTuple):
    """The place of a log among the logs of its broker."""

    number: int
    names: tuple[str, ...]
    """The names of all of them, in the order of their numbers."""

    def home_of(self, session: str) -> str:
        """Return the name of the log of a session."""
        return self.names[partition_of(session, len(self.names))]


def has_home(session: str) -> bool:
    """Return whether a session belongs to one of the logs, and not to all."""
    return session != NATS_SESSION and not session.startswith(LOG_SESSION)


def wrong_home(session: str, state: SessionState, place: LogPlace) -> str | None:
    """Return what is wrong with the log that a session is in; None: nothing.

    A shared subscription may have a part in each log. It matches no topics there, and has its queue
    in its home.
    """
    home, here = place.home_of(session), place.names[place.number]
    if not session.startswith(SHARE):
        if home == here:
            return None
        return f"the session of {shown(session)} is in log {here}, but belongs to log {home}"
    for held in state.subscriptions.values():
        if held.filter.startswith(LOG_SESSION):
            continue
        is_part = bool(held.options & SHARED_PART)
        if home == here and is_part:
            return f"{shown(session)} has only a part in log {here}, which is its home"
        if home != here and not is_part:
            return f"{shown(session)} has its queue in log {here}, but its home is log {home}"
    return None
