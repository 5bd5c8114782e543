"""The text of MQTT 5's events, and of the fields that it added."""

from pathlib import Path

import pytest

from eventstore.format.event_parsing import Event
from eventstore.format.events import (
    Acked,
    Assigned,
    Completed,
    Delivered,
    Expired,
    MessageDropped,
    Queued,
    Received,
    Redelivered,
    Refused,
    ReplayOpened,
    ReplayReached,
    RetainedExpired,
    Returned,
    SessionClosed,
    SessionExpired,
    SessionOpened,
    Subscribed,
    SubscriptionDenied,
    WillArmed,
)
from eventstore.format.node_events import BrokerStarted, LogCut
from eventstore.format.positions import position
from eventstore.format.records import decode_record
from eventstore.reasons import (
    CLOSE_REASONS,
    CUT_REASONS,
    DROP_REASONS,
    EXPIRY_REASONS,
    LEADER_CAUSES,
    RESEND_REASONS,
)
from projections.past.event_object import event_object
from projections.past.event_text import words
from projections.views.session_view import Published

REF = position(5, 0)
NONE: dict[int, Published] = {}
"""No topic of a message is known."""
GOLDEN = Path(__file__).parents[1] / "eventstore" / "golden" / "v1-level5.records"


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (
            SessionOpened(
                "c", False, False, 5, expiry=60, clean_start=True, receive_maximum=9,
                packet_maximum=2048,
            ),
            ("connected: new session, clean start, MQTT 5, session expiry 60 s, receive maximum 9, "
            "packets of 2.0 KiB at most"),
        ),
        (
            SessionOpened("c", True, False, 5, expiry=0xFFFFFFFF),
            "connected: session resumed, MQTT 5, session expiry never",
        ),
        (
            SessionClosed("c", "closed"),
            "connection ended: the client closed the connection without a DISCONNECT",
        ),
        (
            SessionClosed("c", "disconnect", code=4, expiry=0),
            "connection ended: the client sent DISCONNECT (reason code 0x04), session expiry 0 s",
        ),
        (
            Subscribed("c", [("a", 1), ("b", 0)], options=[0x2C, 0x10], identifier=7),
            ("subscribed a QoS 1 no local retain as published nothing retained, "
            "b QoS 0 retained if new, identifier 7"),
        ),
        (
            WillArmed("c", "w", 1, False, 4, 0, 30),
            "left a will for w QoS 1, 4 B, 30 s after the connection ends",
        ),
        (
            Delivered("c", "t", 1, [7], [REF], rap=True),
            "sent message 5.0 QoS 1 retained, packet 7, for t",
        ),
        (
            Queued("c", "t", 1, [REF], 3, expires=1_700_000_000),
            "queued message 5.0 QoS 1, 3 B, until 2023-11-14 22:13:20.500, for t",
        ),
        (Queued("c", "t", 1, [REF], 3, behind=0), "queued again message 5.0 QoS 1, 3 B, for t"),
        (Acked("c", [7], reasons=[0x87]), "acknowledged packet 7 (PUBACK 0x87)"),
        (Received("c", [7], reasons=[0x10]), "received packet 7 (PUBREC 0x10)"),
        (Completed("c", [7], reasons=[0x92]), "completed packet 7 (PUBCOMP 0x92)"),
        (
            Refused("c", [[7, 3, 1]], [0x87, 0x87, 0x97]),
            "refused packets 7-9 (PUBREC 0x87, 0x97)",
        ),
        (Expired("c", "t", [REF], 3), "expired in the queue: message 5.0, for t"),
        (Assigned("$share/g/t", "ann", [REF], 3), "assigned from the queue message 5.0 to ann"),
        (
            Returned("ann", "$share/g/t", [7], [REF]),
            "returned message 5.0, packet 7, to $share/g/t",
        ),
        (RetainedExpired(["a", "b"]), "retained messages expired: a, b"),
        (
            ReplayOpened("c", "$replay/all/#", {}),
            "replays # from the beginning, for $replay/all/#",
        ),
        (
            ReplayOpened(
                "c",
                "$replay/10m..0s/a",
                {},
                start_ms=1_700_000_000_000,
                until_ms=1_700_000_600_000,
            ),
            ("replays a from 2023-11-14 22:13:20.000, up to 2023-11-14 22:23:20.000, "
            "for $replay/10m..0s/a"),
        ),
        (
            ReplayOpened("c", "$replay/5..9.1/a", {"": REF}, until={"": (9 << 20) + 1}),
            "replays a after 5.0, up to 9.1, for $replay/5..9.1/a",
        ),
        (
            ReplayOpened("c", "$replay/last/a", {"": REF, "n-p1": 7 << 20}, last=True),
            ("replays a with the last message of each topic, then after 5.0, n-p1:7.0, "
            "for $replay/last/a"),
        ),
        (
            ReplayOpened("c", "$stream/hall", {"": REF}, topic_filter="hall/#"),
            "replays hall/# after 5.0, for $stream/hall",
        ),
        (
            ReplayReached(
                "archive", "$replay/10m/hall/#", {"": REF}, sent=256, left_out={"not_permitted": 2}
            ),
            "replayed 256 messages through 5.0 (2 not permitted), for $replay/10m/hall/#",
        ),
        (
            ReplayReached("c", "$replay/all/a", {"": REF}, state="live"),
            "replayed 0 messages through 5.0, live, for $replay/all/a",
        ),
        (
            ReplayReached(
                "c",
                "$replay/all/a",
                {"": REF},
                sent=1,
                left_out={"expired": 1, "no_local": 3},
                gap={"": [1 << 20, REF - 1]},
            ),
            ("replayed 1 message through 5.0 (1 expired, 3 of the client itself), 1.0 to record 4 "
            "was gone unread, for $replay/all/a"),
        ),
    ],
    ids=lambda value: value.e if hasattr(value, "e") else "",
)  # fmt: skip
def test_events_as_text(event: Event, said: str) -> None:
    assert words(event, NONE) == said


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (
            MessageDropped("c", "queue_messages", 1, [REF], "t"),
            ("dropped message 5.0 for t: the queue had as many messages as max_queued_messages "
            "allows"),
        ),
        (
            MessageDropped("$share/g/t", "not_permitted", 1, [REF], "t", 4),
            ("dropped from the queue message 5.0 for t: the permissions let no connected member "
            "read this topic (permissions)"),
        ),
        (
            MessageDropped("c", "not_permitted", 1, [REF]),
            ("dropped message 5.0: the permissions do not let the client read this topic "
            "(permissions)"),
        ),
        (
            SubscriptionDenied("c", ["a", "b", "c"], [0x87, 0x8F, 0x87]),
            ("subscription denied: a, c: the permissions do not allow this subscription "
            "(permissions); b: the filter is not allowed"),
        ),
        (Redelivered("c", [7], "ack_wait"),
            "sent again packet 7: it was not acknowledged for ack_wait"),
        (SessionExpired("c", "removed"), "session ended: an operator removed it"),
    ],
    ids=lambda value: value.e if hasattr(value, "e") else "",
)  # fmt: skip
def test_reasons_are_sentences(event: Event, said: str) -> None:
    assert words(event, NONE) == said


def test_no_event_shows_the_code_of_its_reason() -> None:
    events: list[tuple[str, Event]] = [
        *((code, MessageDropped("c", code, 1)) for code in DROP_REASONS),
        *((code, SessionClosed("c", code)) for code in CLOSE_REASONS),
        *((code, SessionExpired("c", code)) for code in EXPIRY_REASONS),
        *((code, Redelivered("c", [1], code)) for code in RESEND_REASONS),
        *((code, LogCut(5, "", 0, code)) for code in CUT_REASONS),
        *((code, BrokerStarted("1", epoch=2, cause=code)) for code in LEADER_CAUSES),
    ]
    for code, event in events:
        said = words(event, NONE).rpartition(": ")[2]
        assert " " in said, said
        assert "`" not in said
        assert said != code
    assert words(SessionClosed("c", "of_later"), NONE) == "connection ended: of_later"


def golden() -> list[tuple[int, Event]]:
    data = GOLDEN.read_bytes()
    size = int.from_bytes(data[:4], "big")
    return list(decode_record(1, data[4 : 4 + size]).events())


@pytest.mark.parametrize(("at", "event"), golden(), ids=lambda value: getattr(value, "e", ""))
def test_every_event_is_an_object_without_defaults(at: int, event: Event) -> None:
    found = event_object(event, at, 0, NONE, None)
    assert found["type"] == event.e
    assert not {"blocks", "block_of", "blocks_at"} & found.keys()
    if isinstance(event, RetainedExpired):
        assert found["topics"] == ["a/b"]
    assert words(event, NONE)


def test_an_event_of_a_client_at_level_4_has_no_fields_of_mqtt_5() -> None:
    found = event_object(SessionOpened("c", False, False, 4), REF, 0, NONE, None)
    assert not {"clean_start", "receive_maximum", "packet_maximum"} & found.keys()


def test_positions_of_replays_are_text_in_json() -> None:
    opened = ReplayOpened("c", "$replay/all/a", {"": REF}, until={"n-p1": REF + 1})
    found = event_object(opened, REF, 0, NONE, None)
    assert found["start"] == {"": "5.0"}
    assert found["until"] == {"n-p1": "5.1"}
    reached = ReplayReached("c", "$replay/all/a", {"": REF}, gap={"": [REF, REF + 3]})
    found = event_object(reached, REF, 0, NONE, None)
    assert (found["through"], found["gap"]) == ({"": "5.0"}, {"": ["5.0", "5.3"]})
    plain = event_object(ReplayReached("c", "$replay/all/a", {}), REF, 0, NONE, None)
    assert not {"gap", "sent", "left_out", "state"} & plain.keys()
