"""A subscription of a session in the subscription index."""

from actors.access.rules import TopicAcl
from actors.kernel.actor import LoopActor
from actors.routing.remote_members import RemoteMembers
from protocol.mqtt.shared_filters import SHARE, split_share


def is_shared(topic_filter: str) -> bool:
    """Return whether a topic filter, or the name of a session, denotes a shared subscription."""
    return topic_filter.startswith(SHARE) and all(split_share(topic_filter))


class SessionEnd:
    """Shared by all subscriptions of a session, including removed ones: whether it has ended."""

    __slots__ = ("happened",)

    def __init__(self) -> None:
        self.happened = False


class Subscriber:
    """One subscription of one session in the index.

    When QoS or options of a client's subscription change, another object takes its place. Messages
    that matched before, and have not reached the subscription's actor yet, keep this one.
    """

    __slots__ = (
        "acl",
        "actor",
        "filter",
        "may_read",
        "options",
        "place",
        "qos",
        "remote",
        "session",
        "session_end",
        "shared",
    )

    def __init__(
        self, session: str, topic_filter: str, qos: int, session_end: SessionEnd | None = None
    ) -> None:
        self.session = session
        self.session_end = session_end or SessionEnd()
        self.filter = topic_filter
        self.qos = qos
        self.shared = is_shared(topic_filter)
        """Whether it is a member's subscription to a shared subscription."""
        self.options = 0
        """Subscription options of MQTT 5 without the QoS."""
        self.actor: LoopActor | None = None
        """The subscription actor; None while the session is offline."""
        self.acl: TopicAcl | None = None
        """The topics that the client may read; None: all, or the client is offline."""
        self.may_read = True
        """Whether the client may still subscribe to the filter; some of its topics may be
        denied."""

        self.remote: RemoteMembers | None = None
        """The members in another log, if it represents one of them; None: it is a client's."""
        self.place = 0
        """Its number among these members."""

    @property
    def ended(self) -> bool:
        """True once its session has ended: pending messages are discarded.

        A subscription ended by UNSUBSCRIBE still gets messages that matched before.
        """
        return self.session_end.happened

    def is_receiver(self, topic: str) -> bool:
        """Return whether messages on a topic that it matches may be sent for it."""
        return not self.ended and (self.acl is None or self.acl.may_read(topic))

    def __repr__(self) -> str:
        """Return session, filter and QoS."""
        return f"Subscriber({self.session!r}, {self.filter!r}, QoS {self.qos})"
