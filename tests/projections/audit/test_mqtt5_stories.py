"""The history of a message that expires, is refused, or goes to a shared subscription."""

import pytest
from harness.client_stories import ClientStories

from eventstore.format.event_parsing import Event
from eventstore.format.events import (
    Acked,
    Assigned,
    Completed,
    Delivered,
    Expired,
    MessageDropped,
    MessagePublished,
    Queued,
    Received,
    Redelivered,
    Refused,
    RetainedExpired,
    Returned,
    SessionClosed,
    SessionOpened,
    Subscribed,
)
from eventstore.format.positions import position
from eventstore.format.records import GENESIS, decode_record, encode_record
from projections.past.message_story import MessageStory
from projections.past.story_builder import StoryBuilder
from projections.past.story_text import story_lines, story_object
from protocol.mqtt.subscription_options import NO_LOCAL

GROUP = "$share/g/t"
REF = position(1, 0)
BLOCK = b"\2\0\0\0\5"
NOW_MS = 1_000_000
"""Later than what expires here."""


def published(*, retain: bool = False) -> MessagePublished:
    return MessagePublished("p", 1, retain, ["t"], [], [1], 2, len(BLOCK), 1, blocks=[len(BLOCK)])


def told(*steps: Event, retain: bool = False) -> MessageStory:
    """The story of a message, published in a record of its own, with each step in another."""
    builder = StoryBuilder([REF])
    for sequence, event in enumerate((published(retain=retain), *steps), 1):
        payloads = [BLOCK, b"on"] if sequence == 1 else []
        data = encode_record(
            previous=GENESIS, node="n", time_ms=1000 * sequence, events=[event], payloads=payloads
        )
        builder.take(decode_record(sequence, data))
    (story,) = builder.stories.values()
    return story


def take(builder: StoryBuilder, *events: Event) -> None:
    """Give a builder events of one record."""
    data = encode_record(previous=GENESIS, node="n", time_ms=1000, events=events, payloads=[b"on"])
    builder.take(decode_record(1, data))


def queued(session: str = "c", *, behind: int = -1) -> Queued:
    return Queued(session, "t", 1, [REF], 2, expires=6, behind=behind)


def sent(qos: int = 1, topic_filter: str = "t", session: str = "c", queued: int = -1) -> Delivered:
    return Delivered(session, topic_filter, qos, [7], [REF], queued=queued)


def said(story: MessageStory) -> list[str]:
    """The text about its copies, without positions and times."""
    lines = list(story_lines(story, None, NOW_MS))
    first = next(at for at, line in enumerate(lines) if line.startswith("  for "))
    return [line.split("  ")[-1] if line.startswith("    ") else line for line in lines[first:]]


def test_a_message_expires_in_the_queue() -> None:
    story = told(queued(), Expired("c", "t", [REF], 2))
    assert story.expires == 6
    assert "expires 1970-01-01 00:00:06" in next(story_lines(story, None, NOW_MS))
    assert said(story) == [
        "  for c, subscription t at QoS 1: expired in the queue",
        "queued",
        "expired in the queue",
    ]
    assert story_object(story, None)["expires"] == "1970-01-01T00:00:06.500Z"


def test_a_client_refuses_a_message() -> None:
    assert said(told(sent(2), Refused("c", [7], [0x97]))) == [
        "  for c, subscription t at QoS 2: not accepted: reason code 0x97 (quota exceeded)",
        "sent as packet 7",
        "refused: PUBREC of packet 7 with reason code 0x97 (quota exceeded)",
    ]
    assert said(told(sent(), Acked("c", [7], reasons=[0x87])))[-1] == (
        "acknowledged: PUBACK of packet 7 with reason code 0x87 (not authorized)"
    )
    assert told(sent(), Acked("c", [7], reasons=[0x83])).copies[0].outcome == "refused"
    assert told(sent(), Acked("c", [7], reasons=[0x10])).copies[0].outcome == "acknowledged"


def test_a_message_goes_to_another_member_when_its_member_leaves() -> None:
    story = told(
        Assigned(GROUP, "ann", [REF]),
        sent(topic_filter=GROUP, session="ann"),
        Returned("ann", GROUP, [7], [REF]),
        queued(GROUP, behind=0),
        Assigned(GROUP, "bob", [REF], 2),
        sent(topic_filter=GROUP, session="bob"),
        Acked("bob", [7]),
    )
    assert [(one.session, one.outcome) for one in story.copies] == [
        (GROUP, "assigned"),
        ("ann", "returned"),
        (GROUP, "assigned"),
        ("bob", "acknowledged"),
    ]
    assert "assigned to the member bob" in said(story)
    assert f"  for {GROUP}, subscription t: assigned to its member ann" in said(story)
    assert "returned to the shared subscription: the member left without acknowledging it" in said(
        story
    )


@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_that_its_client_no_longer_accepts(qos: int) -> None:
    """The broker ends its delivery with a reason code that no client may send."""
    ended = Acked("c", [7], reasons=[0x95]) if qos == 1 else Refused("c", [7], [0x95])
    too_large = "larger than the Maximum Packet Size of the client"
    assert said(told(sent(qos), ended)) == [
        f"  for c, subscription t at QoS {qos}: not sent again: {too_large}",
        "sent as packet 7",
        f"packet 7 not sent again: {too_large}",
    ]
    assert "  recorded for c (not sent again)" in story_lines(told(sent(qos), ended), None, NOW_MS)


def test_a_pubrel_that_is_sent_again_is_no_message_that_is() -> None:
    again = Redelivered("c", [7], "ack_wait")
    story = told(sent(2), again, Received("c", [7]), again, Completed("c", [7]))
    cause = "it was not acknowledged for ack_wait"
    assert said(story)[1:] == [
        "sent as packet 7",
        f"sent again as packet 7: {cause}",
        "received: PUBREC of packet 7",
        f"PUBREL of packet 7 sent again: {cause}",
        "complete: PUBCOMP of packet 7",
    ]


def test_a_message_that_a_client_has_is_not_refused_with_its_pubcomp() -> None:
    """It does not know the packet identifier of a PUBREL that is sent again."""
    again = Redelivered("c", [7], "resumed")
    story = told(sent(2), Received("c", [7]), again, Completed("c", [7], reasons=[0x92]))
    assert said(story)[0] == "  for c, subscription t at QoS 2: acknowledged"
    assert said(story)[-1].startswith("complete: PUBCOMP of packet 7 with reason code 0x92")


def test_content_that_was_erased_may_be_why_it_is_not_sent_again() -> None:
    story = told(sent(), Acked("c", [7], reasons=[0x98]))
    assert "or its content was erased" in said(story)[0]


def test_a_drop_is_a_sentence() -> None:
    large = told(MessageDropped("c", "packet_too_large", 1, [REF], "t"))
    assert said(large)[0].endswith("dropped: larger than the Maximum Packet Size of the client")
    denied = told(MessageDropped(GROUP, "not_permitted", 1, [REF], "t"))
    assert said(denied)[0].endswith("let no connected member read this topic (permissions)")
    assert said(told(MessageDropped("c", "odd", 1, [REF], "t")))[0].endswith("dropped: odd")


def test_waiting_messages() -> None:
    assert said(told(queued()))[0].endswith("still queued, but expired: it will not be sent")
    lasting = Queued(GROUP, "t", 1, [REF], 2)
    builder = StoryBuilder([REF])
    take(builder, MessagePublished("p", 1, False, ["t"], [], [1], 2, 0, 1), lasting)
    (story,) = builder.stories.values()
    assert said(story)[0].endswith("waits until a member is connected and has room")


def test_a_member_without_the_message_shows_the_receiving_member() -> None:
    builder = ClientStories("bob", position(1, 2))
    take(
        builder,
        SessionOpened("bob", False, False, 5, expiry=60),
        Subscribed("bob", [(GROUP, 1)]),
        MessagePublished("p", 1, False, ["t"], [], [1], 2, 0, 1),
        Assigned(GROUP, "ann", [position(1, 2)]),
    )
    (story,) = builder.stories.values()
    lines = list(story_lines(story, "bob", NOW_MS))
    given = f"  bob shares {GROUP}, which assigned it to ann: each message goes to one member"
    assert given in lines
    assert f"  for {GROUP}, subscription t: assigned to its member ann" in lines


def test_a_publisher_with_no_local_shows_the_reason() -> None:
    builder = ClientStories("c", position(1, 2))
    take(
        builder,
        SessionOpened("c", False, False, 5, expiry=60),
        Subscribed("c", [("t", 1)], options=[NO_LOCAL]),
        MessagePublished("c", 1, False, ["t"], [], [1], 2, 0, 1),
    )
    (story,) = builder.stories.values()
    said_so = "  c published the message itself, and its subscription (t) has No Local"
    assert said_so in list(story_lines(story, "c", NOW_MS))


def test_a_retained_message_expires() -> None:
    story = told(RetainedExpired(["t"]), retain=True)
    assert [(step.what, step.at) for step in story.steps] == [("expired", position(2, 0))]
    assert any(
        "expired: it is no longer retained" in line for line in story_lines(story, None, NOW_MS)
    )
    assert told(RetainedExpired(["t"])).steps == []


def test_disconnect_sets_the_end_of_the_session() -> None:
    opened = SessionOpened("c", False, False, 5, expiry=60)
    kept = told(opened, sent(), SessionClosed("c", "disconnect"))
    assert kept.copies[0].outcome == "in_flight"
    ended = told(opened, sent(), SessionClosed("c", "disconnect", expiry=0))
    assert ended.copies[0].outcome == "gone"
