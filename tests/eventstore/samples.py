"""One event of every type, with every field set to a value other than its default."""

from eventstore.format.destination_events import (
    DestinationClosed,
    DestinationOpened,
    Forwarded,
    ForwardLost,
    ForwardRefused,
    OriginTaken,
)
from eventstore.format.erasure_events import (
    Erased,
    ErasureRequested,
    KeysSnapshot,
    TopicsKeyed,
)
from eventstore.format.event_parsing import Event
from eventstore.format.events import (
    Acked,
    Assigned,
    Completed,
    Delivered,
    Expired,
    InboundReplaced,
    MessageDropped,
    MessagePublished,
    Queued,
    Received,
    Redelivered,
    Refused,
    Released,
    ReplayOpened,
    ReplayReached,
    RetainedExpired,
    Returned,
    SessionClosed,
    SessionExpired,
    SessionOpened,
    SessionTakenOver,
    Subscribed,
    SubscriptionDenied,
    Unsubscribed,
    WillArmed,
    WillCancelled,
    WillFired,
)
from eventstore.format.node_events import (
    Bridged,
    BrokerStarted,
    BrokerStopped,
    CheckpointBegun,
    CheckpointCompleted,
    ClockJumped,
    Followed,
    LeaderProved,
    LimitsApplied,
    LogArchived,
    LogCut,
    LogEndUnproven,
    LogSalvaged,
    MessagesCarried,
    OperatorActed,
    RetainedCleared,
    RetainedSnapshot,
    SessionSnapshot,
    WebAccessed,
)
from eventstore.format.positions import Run
from eventstore.format.records import GENESIS
from eventstore.format.turn_events import TurnAcked, TurnDelivered, TurnPublished, TurnReleased

PAYLOADS = [b"", b"\x00\xff", b"three"]
"""Of the MessagePublished event below; the will's payload follows them."""
WILL = b"gone"


def every_event() -> list[Event]:
    """One event of every type at least; the payloads are ALL_PAYLOADS."""
    before = sum(map(len, PAYLOADS)) + len(WILL)
    return [
        *first_events(),
        *mqtt5_events(before),
        *limit_events(),
        *clock_events(),
        *cluster_events(),
        *packet_events(),
        exchange_events()[-1],
        *destination_events(),
        *retry_events(),
        *origin_events(),
        *erasure_events(),
        *period_events(),
        *salvage_events(),
        *unproven_events(),
        *replay_events(),
    ]


def packet_events() -> list[Event]:
    """A bridge of another broker, and QoS 2 messages whose packet identifiers were used again."""
    first = 1 << 20
    return [
        SessionOpened("bridge", resumed=False, clean=False, level=4, bridge=True),
        InboundReplaced("bridge", [[7, 2, 1]], [[first, 2, 1]]),
    ]


def limit_events() -> list[Event]:
    """What an audit judges drops by, and subscriptions that were denied."""
    return [
        LimitsApplied(
            {"max_queued_messages": 1000, "session_expiry": 0.5, "check_payload_format": True},
            permissions="0123456789abcdef",
            users="fedcba9876543210",
            elsewhere=True,
        ),
        SubscriptionDenied("c", ["secret/#", "a/+"], [0x87, 0x97]),
    ]


def replay_events() -> list[Event]:
    """Subscriptions that read the log."""
    first = 1 << 20
    return [
        Subscribed("c", [("$replay/10m/a/#", 1), ("$replay/last/b", 0)]),
        ReplayOpened("c", "$replay/10m/a/#", {}, start_ms=1_700_000_000_000),
        ReplayOpened(
            *("c", "$replay/last/b", {"": first, "n-p1": 7 << 20}),
            start_ms=1_700_000_000_000,
            until={"n-p1": 9 << 20},
            until_ms=1_700_000_000_009,
            last=True,
        ),
        ReplayOpened("c", "$stream/hall", {}, topic_filter="hall/#"),
        Delivered("c", "$replay/10m/a/#", 1, [7, 8], [first, first + 2]),
        ReplayReached("c", "$replay/10m/a/#", {"": first + 2}, sent=2, left_out={"expired": 1}),
        ReplayReached(
            *("c", "$replay/last/b", {"": first + 2, "n-p1": 9 << 20}),
            sent=1,
            left_out={"not_permitted": 2, "no_local": 1},
            gap={"n-p1": [1 << 20, (8 << 20) - 1]},
            state="ended",
        ),
    ]


def salvage_events() -> list[Event]:
    """The part of a salvaged log that says what was given up."""
    return [
        LogSalvaged(
            2, 5, "cd" * 32, 4, 900, 12, "/var/lib/foldmq", "root@host", "0.1.0", ["c", "d"], 2
        )
    ]


def unproven_events() -> list[Event]:
    """What a broker records that starts on a copy of a log, or without its watermark."""
    return [
        LogEndUnproven("copy", 12, 1_700_000_000_001, 17),
        LogEndUnproven("restored", 12, 1_700_000_000_001, source="/backup/monday"),
        LogEndUnproven("no_watermark", 12, 1_700_000_000_001),
    ]


def first_events() -> list[Event]:
    """What there was before MQTT 5; the payloads are PAYLOADS and WILL."""
    properties = {"user": [["a", "b"]]}
    return [
        BrokerStarted("0.1.0"),
        SessionOpened(
            "dev/\u00e9\u0001",
            resumed=True,
            clean=False,
            level=4,
            keep_alive=60,
            generation=3,
            address="127.0.0.1:5000",
            user="u",
            expiry=7200,
            properties=properties,
        ),
        SessionTakenOver("c", 2),
        WillArmed("c", "will/c", 2, True, len(WILL), 7, 5, properties),
        Subscribed("c", [("a/+", 1), ("b/#", 2)], properties),
        Unsubscribed("c", ["a/+"]),
        MessagePublished(
            "c", 2, True, ["a/b", "a/c"], [0, 1, 0], [[1, 3, 1]], [0, 2, 5], 0, 3, True, [None] * 3
        ),
        Delivered("d", "a/+", 1, [[10, 3, 1]], [[1 << 20, 3, 1]], True, 512),
        Queued("d", "a/+", 2, [1 << 20, [3 << 20, 4, 7]], 99, True),
        Redelivered("d", [10, 12], "ack_wait"),
        Acked("d", [[10, 3, 1]]),
        Received("d", [5, 9]),
        Completed("d", [5]),
        Released("c", [[1, 3, 1]], [[1 << 20, 3, 1]]),
        MessageDropped("d", "queue_messages", 2, [1, 2], "a/+", 40),
        WillFired("c"),
        WillCancelled("c"),
        SessionClosed("c", "keep_alive", 3),
        SessionExpired("c", "expired"),
        CheckpointBegun(3),
        SessionSnapshot(
            "d",
            {
                "generation": 2,
                "closed_ms": 1_700_000_000_000,
                "subscriptions": [["a/+", 1], ["b", 2, False]],
                "queues": [[0, 12, [[1 << 23, 3, 8], 9 << 23]]],
                "inflight": [[1, 2, 1_700_000_000_000, [1], [1 << 20]]],
            },
            0,
            last=False,
        ),
        SessionSnapshot("d", {"inbound": [[[7]], [[1 << 20]]]}, 1),
        RetainedSnapshot(["a", "b"], [0, 1], [5, 9], [3, 4], 0, 2),
        RetainedSnapshot(["a"], [2], [5], 3, 0, 1, "d"),
        CheckpointCompleted(3, 1 << 20, 1, 2),
        MessagesCarried([[1 << 20, 3, 1]], ["a", "b"], [0, 1, 0], 2, 0, 3),
        LogCut(1, GENESIS.hex(), 1_700_000_000_001, "keep"),
        LogArchived(1, "ab" * 32, "ann@desk", "/archive"),
        Bridged(3 << 20),
        OperatorActed("kick", "ann@desk", "c", "c"),
        OperatorActed("clear_retained", "ann@desk", "2 topics"),
        RetainedCleared(["a", "b"]),
        WebAccessed("login", "127.0.0.1", "ann", "view-all", first_ms=1_700_000_000_002),
        WebAccessed("refused", "192.0.2.7", "", "", "wrong_token", 12, 1_700_000_000_003),
        WebAccessed("token_added", "", "ann", "view", expires="2026-12-31T23:59:59Z"),
        BrokerStopped(),
    ]


MQTT5_PAYLOADS = [
    *(b"\x02\x00\x00\x00\x3c\x01\x01", b"\x03\x00\x01j", b"", b"{}", b"on"),
    *(b"\x01\x01", b"will"),
    *(b"\x02\x00\x00\x00\x05", b"\x00\x01", b"kept", b"more"),
    *(b"\x01\x00", b"repeated"),
]
"""Blocks of properties and payloads of the events below, in their order."""


ALL_PAYLOADS = [*PAYLOADS, WILL, *MQTT5_PAYLOADS]


def mqtt5_events(before: int = 0) -> list[Event]:
    """What MQTT 5 added: new events, and events with the fields that were added.

    The payloads are MQTT5_PAYLOADS, with ``before`` bytes before them.
    """
    first, expires = 1 << 20, 1_700_000_060
    return [
        SessionOpened(
            "five",
            resumed=False,
            clean=False,
            level=5,
            expiry=4_294_967_295,
            properties={"user": [["a", "b"]]},
            clean_start=True,
            receive_maximum=20,
            packet_maximum=1024,
        ),
        Subscribed("five", [("a/+", 1), ("b/#", 2)], options=[0x04, 0x28], identifier=268_435_455),
        MessagePublished(
            *("five", 1, True, ["a/b"], [], [[1, 3, 1]], [0, 2, 2], 11 + before, 3),
            blocks=[7, 4],
            block_of=[1, 0, 2],
        ),
        WillArmed("five", "will/five", 1, False, 4, 17 + before, 30, blocks=[2]),
        Delivered("five", "b/#", 2, [7], [first], rap=True),
        Queued("six", "#", 1, [[first, 3, 1]], 4, expires=[expires, 0, 0]),
        Queued("$share/g/#", "#", 1, [first], 4, expires=expires, behind=0),
        Acked("five", [1, 2], reasons=[0, 0x87]),
        Received("five", [3], reasons=[0x10]),
        Completed("five", [3], reasons=[0x92]),
        Refused("five", [4, 5], [0x83, 0x99]),
        Expired("six", "#", [first], 0),
        Assigned("$share/g/#", "five", [[first, 3, 1]], 4),
        Returned("five", "$share/g/#", [7, 8, 9], [[first, 3, 1]]),
        RetainedExpired(["a/b"]),
        MessagesCarried(
            *([first, first + 2], ["a/b"], [], 4, 28 + before, 2),
            blocks=[5, 2],
            block_of=[1, 2],
            expires=[expires, 0],
        ),
        RetainedSnapshot(["a/b"], [1], [first], 8, 38 + before, 1, blocks=[2], expires=expires),
        SessionClosed("five", "disconnect", 1, code=0x04, expiry=60),
    ]


def clock_events() -> list[Event]:
    """A jump of the clock."""
    return [ClockJumped(-3_600_000, "running")]


def cluster_events() -> list[Event]:
    """What clusters added: a new event, and events with the fields that were added."""
    return [
        BrokerStarted("0.2.0", epoch=3, leader="n1", cause="silent"),
        LeaderProved(3),
        CheckpointBegun(4, epoch=3),
    ]


def retry_events() -> list[Event]:
    """Refused messages that are sent again, and the repetition of their destination."""
    refs: list[Run] = [[(3 << 20) + 1, 2, 1]]
    return [
        OperatorActed("retry_messages", "ann@desk", "erp", refs=refs),
        DestinationOpened(
            *("erp", "http", 2 << 20, ["a/#", "b"], "0123456789abcdef", "repeated", "ann"),
            run=2 << 20,
            refused=2,
            refs=refs,
        ),
        Forwarded("erp", 3 << 20, number=8, count=1, refs=refs),
    ]


def origin_events() -> list[Event]:
    """Messages that a bridge brought, and the repetition of how far it came."""
    place = ("bridge", "far", 2 << 20, (3 << 20) + 4, 1_700_000_000_000)
    return [
        OriginTaken(*place, [[5 << 20, 2, 1]], [[(3 << 20) + 3, 2, 1]]),
        OriginTaken(*place, [], []),
    ]


def destination_events() -> list[Event]:
    """A destination of the outbox, from its beginning to its end, and its repetition."""
    return [
        DestinationOpened("erp", "http", 2 << 20, ["a/#", "b"], "0123456789abcdef", "first", "ann"),
        Forwarded("erp", (3 << 20) - 1, number=7, count=7),
        Forwarded("erp", 3 << 20, received=(3 << 20) + 4, number=8, count=1),
        ForwardRefused("erp", [[(3 << 20) + 1, 2, 1]], "Unprocessable Entity", code=422),
        ForwardLost("erp", (3 << 20) + 2, (9 << 20) - 1, "max_behind"),
        ForwardLost("erp", (9 << 20) - 1, 9 << 20, "skip", messages=1),
        DestinationOpened(
            *("erp", "http", 2 << 20, ["a/#", "b"], "0123456789abcdef", "repeated", "ann"),
            run=2 << 20,
            paused=True,
            refused=2,
            losses=2,
        ),
        DestinationClosed("erp", "removed"),
    ]


def erasure_events() -> list[Event]:
    """Keys of topics, and their erasure."""
    return [
        TopicsKeyed(["a", "b/c"], [[7, 2, 1]], ["0f" * 16, "1e" * 16]),
        KeysSnapshot(["a", "b/c"], [7, 8], 9, 2, [9]),
        ErasureRequested(3, "ann", "request", ["a"], [7]),
        Erased(3, 1),
    ]


def period_events() -> list[Event]:
    """Keys that are used for a period, and the erasure of one."""
    return [
        TopicsKeyed(
            ["a"], [7], ["0f" * 16], begins_ms=1_700_000_000_000, ends_ms=1_700_000_060_000
        ),
        KeysSnapshot(["a", "a"], [7, 8], 8, 2, [], begins_ms=[1, 5], ends_ms=[5, 9]),
        ErasureRequested(3, "foldmq", "keep", ["a"], [7], before_ms=1_700_000_070_000),
    ]


def exchange_events() -> list[Event]:
    """What a log takes from another one; the payloads are EXCHANGE_PAYLOADS."""
    return [
        MessagePublished(
            *("$log/n-1", 1, False, ["a", "b"], [0, 1], [1, 2], 2, 0, 2),
            origins=[[7 << 20, 2, 1]],
        ),
        Followed("n-1", (7 << 20) + 1, "cd" * 32),
    ]


EXCHANGE_PAYLOADS = [b"up", b"ok"]


def mqtt5_turn_events() -> list[Event]:
    """What MQTT 5 added to what several sessions share; the payloads are MQTT5_TURN_PAYLOADS."""
    return [
        TurnPublished(
            *(["a", "b"], [0, 1, 0, 1], 1, ["t"], [], [1, 2, 65_535, 4], 2, 11, 4),
            blocks=[7, 4],
            block_of=[1, 0, 2, 2],
        ),
        TurnPublished(["a", "b"], [], 2, ["t", "u"], [], [7, 7], [1, 0], 21, 2, blocks=[2]),
        TurnAcked("Acked", ["x", "y"], [0, 1, 0], [1, 9, 2], reasons=[0, 0x87, 0]),
    ]


MQTT5_TURN_PAYLOADS = [
    *(b"\x02\x00\x00\x00\x3c\x01\x01", b"\x03\x00\x01j", b"up", b"ok", b"no", b"to"),
    *(b"\x01\x01", b"!", b""),
]


def turn_events() -> list[Event]:
    """What several sessions share, of each type; the payloads are TURN_PAYLOADS."""
    first = 1 << 20
    return [
        TurnPublished(["a", "b"], [0, 1, 0], 1, ["t", "ü/2"], [0, 0, 1], [1, 2, 65_535], 2, 0, 3),
        TurnPublished(["c", "d"], [], 2, ["t"], [], [7, 7], [0, 5], 6, 2),
        TurnDelivered(["x", "y"], ["t", "#"], [0, 1, 0], 1, [1, 9, 2], [[first, 3, 1]]),
        TurnAcked("Acked", ["x", "y"], [0, 1, 0], [1, 9, 2]),
        TurnReleased(["c", "d"], [], [7, 7], [first + 3, first + 4]),
        TurnDelivered(["x"], ["t"], [], 2, [3, 4], [first + 3, first + 4]),
        TurnAcked("Received", ["x"], [], [3, 4]),
        TurnAcked("Completed", ["x"], [], [3, 4]),
    ]


TURN_PAYLOADS = [b"up", b"ok", b"no", b"", b"\x00\xff\x00\xff\x00"]
