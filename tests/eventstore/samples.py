"""One event of every type, with every field set to something that is not its default."""

from eventstore.format import (
    GENESIS,
    Acked,
    Bridged,
    BrokerStarted,
    BrokerStopped,
    CheckpointBegun,
    CheckpointCompleted,
    Completed,
    Delivered,
    Event,
    LogArchived,
    LogCut,
    MessageDropped,
    MessagePublished,
    MessagesCarried,
    OperatorActed,
    Queued,
    Received,
    Redelivered,
    Released,
    RetainedCleared,
    RetainedSnapshot,
    SessionClosed,
    SessionExpired,
    SessionOpened,
    SessionSnapshot,
    SessionTakenOver,
    Subscribed,
    TurnAcked,
    TurnDelivered,
    TurnPublished,
    TurnReleased,
    Unsubscribed,
    WebAccessed,
    WillArmed,
    WillCancelled,
    WillFired,
)

PAYLOADS = [b"", b"\x00\xff", b"three"]
"""Of the MessagePublished event below; the will's payload follows them."""
WILL = b"gone"


def every_event() -> list[Event]:
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
