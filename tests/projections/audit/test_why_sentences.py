"""``why`` gives reasons as sentences, with their limits, and names filters that nearly match."""

import pytest
from harness.client_stories import ClientStories

from eventstore.format.event_parsing import Event
from eventstore.format.events import (
    MessageDropped,
    MessagePublished,
    Queued,
    SessionExpired,
    SessionOpened,
    Subscribed,
    SubscriptionDenied,
)
from eventstore.format.node_events import LimitsApplied
from eventstore.format.positions import position
from eventstore.format.records import GENESIS, decode_record, encode_record
from projections.past.story_text import story_lines, story_object
from projections.past.subscriber_state import filters_alike

LIMITS = LimitsApplied(
    {"max_queued_messages": 1000, "max_queued_bytes": 5, "max_outbound_bytes": 9}
)


def published(topic: str = "hall/door", qos: int = 1) -> MessagePublished:
    return MessagePublished("p", qos, False, [topic], [], [1], 2, 0, 1)


def told(*steps: Event) -> list[str]:
    """The text for ``c`` about the last message, each event in a record of its own."""
    messages = (at for at, step in enumerate(steps, 1) if isinstance(step, MessagePublished))
    builder = ClientStories("c", position(max(messages), 0))
    for sequence, event in enumerate(steps, 1):
        payloads = [b"on"] if isinstance(event, MessagePublished) else []
        data = encode_record(
            previous=GENESIS, node="n", time_ms=1000 * sequence, events=[event], payloads=payloads
        )
        builder.take(decode_record(sequence, data))
    (story,) = builder.stories.values()
    assert story_object(story, "c")["client"] == "c"
    return list(story_lines(story, "c", 0))


def test_an_empty_retained_message_is_said_to_remove_the_retained_one() -> None:
    removal = "which removed the retained message on the topic"
    assert told(MessagePublished("p", 1, True, ["a"], [], [1], 0, 0, 1))[0].endswith(removal)
    for kept in (published(), MessagePublished("p", 1, True, ["a"], [], [1], 2, 0, 1)):
        assert removal not in told(kept)[0]


def opened() -> SessionOpened:
    return SessionOpened("c", False, False, 4)


def dropped(reason: str, at: int) -> MessageDropped:
    return MessageDropped("c", reason, 1, [position(at, 0)], "hall/+")


@pytest.mark.parametrize(
    ("reason", "sentence"),
    [
        (
            "queue_messages",
            "the queue was full: 1,000 messages waited, as many as max_queued_messages allows",
        ),
        (
            "queue_bytes",
            (
                "the queue was full: with this message it would have exceeded the 5 bytes that "
                "max_queued_bytes allows"
            ),
        ),
        ("not_permitted", "the permissions do not let the client read this topic (permissions)"),
        ("unsubscribed", "the client unsubscribed while the message waited"),
    ],
)
def test_a_drop_names_limit_and_setting(reason: str, sentence: str) -> None:
    lines = told(LIMITS, published(), dropped(reason, 2))
    assert any(line.endswith(f"dropped: {sentence}") for line in lines), lines


def test_an_unrecorded_limit_is_reported_as_unknown() -> None:
    lines = told(published(), dropped("queue_messages", 1))
    sentence = "the queue had as many messages as max_queued_messages allows; its value is not"
    assert any(sentence in line for line in lines), lines


@pytest.mark.parametrize(
    ("reason", "why"),
    [
        ("removed", "an operator removed it"),
        ("expired", "it expired"),
        ("later", "later"),  # of a later version
    ],
)
def test_the_end_of_a_session_has_its_reason(reason: str, why: str) -> None:
    queued = Queued("c", "hall/+", 1, [position(3, 0)], 2)
    told_of = told(
        opened(), Subscribed("c", [("hall/+", 1)]), published(), queued, SessionExpired("c", reason)
    )
    assert told_of[-1].endswith(f"the session ended: {why}")


def test_a_denied_subscription_is_the_answer() -> None:
    denied = SubscriptionDenied("c", ["hall/#", "x"], [0x87, 0x97])
    lines = told(opened(), denied, published())
    (line,) = (one for one in lines if one.startswith("  c "))
    assert line.startswith(
        "  c was connected but had no matching subscription; it was denied hall/#"
    )
    assert line.endswith("the permissions do not allow this subscription (permissions)")
    granted = told(opened(), denied, Subscribed("c", [("hall/#", 0)]), published(qos=0))
    assert not any("denied" in line for line in granted)


def test_filters_that_nearly_match_are_named() -> None:
    lines = told(opened(), Subscribed("c", [("hall/doors", 1), ("cellar", 1)]), published())
    (line,) = (one for one in lines if one.startswith("  c "))
    assert line.endswith("; hall/doors nearly matches: the topic is hall/door")


@pytest.mark.parametrize(
    "topic_filter",
    ["hall/doors", "Hall/door", "/hall/door", "hall/door/", "hal/+", "$share/g/hall/doar"],
)
def test_similar_topics(topic_filter: str) -> None:
    assert filters_alike("hall/door", [topic_filter, "cellar/window"]) == [topic_filter]
