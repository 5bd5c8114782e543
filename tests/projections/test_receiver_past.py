"""``why`` of a client that got nothing: its earlier session, and messages that it did not read."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from harness.logs import LogBuilder
from indexedlogs import as_log, turns_written, written

from cli.commands.log_events import Selection
from cli.web.pages.log import find_page
from eventstore.format.event_parsing import Event
from eventstore.format.events import (
    MessageDropped,
    MessagePublished,
    ReplayOpened,
    ReplayReached,
    SessionClosed,
    SessionExpired,
    SessionOpened,
    Subscribed,
    SubscriptionDenied,
    Unsubscribed,
    WillArmed,
    WillCancelled,
    WillFired,
)
from eventstore.format.node_events import (
    CheckpointBegun,
    CheckpointCompleted,
    LimitsApplied,
    RetainedSnapshot,
    SessionSnapshot,
)
from eventstore.format.positions import position
from projections.past.message_search import find_stories
from projections.past.message_story import MessageStory
from projections.past.missing_message import explain_no_message
from projections.past.story_text import story_lines, story_object

OPENED = SessionOpened("c", False, False, 4)
CLEAN = SessionOpened("c", False, True, 4)
GRANTED = Subscribed("c", [("hall/+", 0), ("cellar", 0)])
UNREAD = MessageDropped("c", "slow_reader", 1)
SLOW = "the client did not read: 9 bytes of output waited, as many as max_outbound_bytes allows"


def published(topic: str = "hall/door") -> MessagePublished:
    return MessagePublished("p", 1, False, [topic], [], [1], 2, 0, 1)


def story(path: Path, indexed: float, *turns: list[Event], at: int) -> MessageStory:
    """The history of the message of a record, with a share of the log in an index."""
    source = turns_written(path, indexed, *turns)
    found = asyncio.run(find_stories(as_log(source), ref=position(at, 0), client="c"))
    (one,) = found
    return one


def told(path: Path, indexed: float, *turns: list[Event], at: int) -> str:
    """The text for ``c`` about the message."""
    lines = list(story_lines(story(path, indexed, *turns, at=at), "c", 0))
    (line,) = (one.strip() for one in lines if one.startswith("  c "))
    return line


LIMITS = LimitsApplied({"max_outbound_bytes": 9})
BEGUN: tuple[list[Event], ...] = ([LIMITS], [OPENED], [GRANTED])
SHARES = pytest.mark.parametrize("indexed", [0, 0.5, 1])


@SHARES
def test_a_message_that_a_slow_client_lost_was_not_sent(tmp_path: Path, indexed: float) -> None:
    line = told(tmp_path, indexed, *BEGUN, [published(), UNREAD], [published("x")], at=4)
    assert line.startswith(
        "c was subscribed (hall/+ QoS 0) and connected, but 1 message of that time was dropped "
        "for it, most likely this one, at 4.1, "
    )
    assert line.endswith(f": {SLOW}")


@SHARES
def test_of_several_messages_some_were_dropped(tmp_path: Path, indexed: float) -> None:
    turn = [published(), published("hall/lamp"), published("x"), UNREAD]
    one = story(tmp_path, indexed, *BEGUN, turn, at=4)
    (line,) = (line for line in story_lines(one, "c", 0) if line.startswith("  c "))
    assert "1 message of that time was dropped for it, perhaps this one, at 4.3" in line
    subscriber: Any = story_object(one, "c")["standing"]
    unread = subscriber["unread"]
    assert (unread["position"], unread["dropped"], unread["messages"]) == ("4.3", 1, 2)


@SHARES
def test_drops_of_another_moment_or_client_say_nothing(tmp_path: Path, indexed: float) -> None:
    other = MessageDropped("other", "slow_reader", 1)
    named = MessageDropped("c", "slow_reader", 1, [position(1, 0)])
    turns = ([UNREAD], [published(), other, named], [UNREAD])
    line = told(tmp_path, indexed, *BEGUN, *turns, at=5)
    assert line.endswith("connected: sent at QoS 0, which is not recorded")


@SHARES
@pytest.mark.parametrize(
    ("events", "said"),
    [
        (
            (CLEAN, GRANTED, SessionClosed("c", "keep_alive")),
            (
                ": its last one, which was subscribed to hall/+, ended with its connection at 3.",
                "(the client sent no packet for one and a half times its keep alive)",
            ),
        ),
        (
            (CLEAN, GRANTED, SessionClosed("c", "of_later")),
            (": its last one, which was subscribed to hall/+, ended with its", "(of_later)"),
        ),
        (
            (OPENED, GRANTED, Unsubscribed("c", ["hall/+"]), SessionExpired("c", "removed")),
            (
                ": its last one, with no matching subscription, ended at 4.0, ",
                "(an operator removed it)",
            ),
        ),
        (
            (OPENED, GRANTED, SessionClosed("c", "disconnect", expiry=0)),
            (
                ": its last one, which was subscribed to hall/+, ended with its",
                "(the client sent DISCONNECT)",
            ),
        ),
        (
            (CLEAN, GRANTED, CLEAN, SessionClosed("c", "closed")),
            (": its last one, with no matching subscription, ended with its", "a DISCONNECT)"),
        ),
    ],
)
def test_how_the_last_session_ended(
    tmp_path: Path, indexed: float, events: tuple[Event, ...], said: tuple[str, str]
) -> None:
    turns: list[list[Event]] = [*([one] for one in events), [published()], [CLEAN], [GRANTED]]
    one = story(tmp_path, indexed, *turns, at=len(events) + 1)
    (line,) = (line for line in story_lines(one, "c", 0) if line.startswith("  c "))
    assert line.startswith(f"  c had no session at that time{said[0]}")
    assert line.endswith(said[1])
    subscriber: Any = story_object(one, "c")["standing"]
    ended = events[-1]
    assert isinstance(ended, (SessionClosed, SessionExpired))
    assert subscriber["seen"]
    assert subscriber["earlier"]["reason"] == ended.reason


@SHARES
def test_a_client_that_the_log_never_saw(tmp_path: Path, indexed: float) -> None:
    never = told(tmp_path, indexed, [published()], at=1)
    assert never == "c had no session at that time: the log does not know this client"
    later = told(tmp_path / "later", indexed, [published()], [OPENED], at=1)
    assert later == "c had no session at that time: its first one began later"


@pytest.mark.parametrize(
    ("later", "fate"),
    [
        (None, "it is not published yet"),
        (WillFired("pump"), "it was published at 3.0, "),
        (WillCancelled("pump"), "it was discarded at 3.0, "),
        (WillArmed("pump", "else", 1, False, 1, 0), "it was replaced at 3.0, "),
    ],
)
@SHARES
async def test_a_will_on_the_topic_is_no_message_on_it(
    tmp_path: Path, later: Event | None, fate: str, indexed: float
) -> None:
    log = LogBuilder("n")
    log.record(WillArmed("pump", "wills/pump", 1, False, 1, 0), payloads=[b"x"])
    log.record(WillArmed("pumb", "wills/pumb", 1, False, 1, 0), payloads=[b"x"])
    log.record(
        *([later] if later is not None else [SessionOpened("spy", False, False, 5)]),
        payloads=[b"x"] if isinstance(later, WillArmed) else [],
    )
    log.record(MessagePublished("p", 1, False, ["wills/pum"], [], [1], 1, 0, 1), payloads=[b"x"])
    source = written(log.records, tmp_path, indexed)
    explained = await explain_no_message(as_log(source), "wills/pump", None, None)
    _, will, alike = explained.split("; ")
    assert will.startswith("pump has a will on wills/pump since 1.0, ")
    assert fate in will
    assert alike == "there are messages on wills/pum"


@SHARES
async def test_a_message_that_is_sent_in_steps_may_be_among_later_drops(
    tmp_path: Path, indexed: float
) -> None:
    log = LogBuilder("n", step_ms=100)
    for events in (*BEGUN, [published()], [UNREAD], [UNREAD], [UNREAD]):
        log.record(*events, payloads=[b"on"] if events == [published()] else [])
    source = written(log.records, tmp_path, indexed)
    found = await find_stories(as_log(source), ref=position(4, 0), client="c")
    (line,) = (line for line in story_lines(found[0], "c", 0) if line.startswith("  c "))
    assert "2 messages of that time were dropped for it, perhaps this one, at 6.0, " in line


@SHARES
async def test_a_session_that_a_checkpoint_found(tmp_path: Path, indexed: float) -> None:
    state = {"generation": 1, "connected": True, "clean": True, "subscriptions": [["hall/+", 0]]}
    log = LogBuilder("n")
    log.record(CLEAN)
    log.record(GRANTED)
    log.record(CheckpointBegun(1))
    log.record(SessionSnapshot("c", state))
    log.record(CheckpointCompleted(1, position(3, 0), 1, 0))
    log.record(SessionClosed("c", "kicked"))
    log.record(published(), payloads=[b"on"])
    source = written(log.records, tmp_path, indexed, first=3)
    found = await find_stories(as_log(source), ref=position(7, 0), client="c")
    (line,) = (line for line in story_lines(found[0], "c", 0) if line.startswith("  c "))
    assert ": its last one, which was subscribed to hall/+, ended with its connection at 6." in line
    assert line.endswith("(an operator disconnected the client)")


@SHARES
def test_a_subscription_that_ended_just_before_or_began_just_after(
    tmp_path: Path, indexed: float
) -> None:
    left = Unsubscribed("c", ["hall/+", "cellar"])
    turns: tuple[list[Event], ...] = (*BEGUN, [left], [published()], [GRANTED])
    line = told(tmp_path, indexed, *turns, at=5)
    assert line.startswith(
        "c was connected but had no matching subscription; hall/+ was unsubscribed at 4.0, "
    )
    assert "; hall/+ was subscribed only at 6.0, " in line
    subscriber: Any = story_object(story(tmp_path / "2", indexed, *turns, at=5), "c")["standing"]
    assert subscriber["ended"]["position"] == "4.0"
    assert subscriber["begun"]["position"] == "6.0"
    other = told(tmp_path / "3", indexed, *BEGUN, [published("attic")], [GRANTED], at=4)
    assert other == "c was connected but had no matching subscription"


async def test_a_message_from_before_the_log(tmp_path: Path) -> None:
    """Its copy is known, not its publication, and nothing of the receiver at that time."""
    state = {"generation": 1, "connected": True, "clean": False, "subscriptions": [["hall/+", 0]]}
    log = LogBuilder("n")
    log.record(OPENED)
    log.record(GRANTED)
    log.record(CheckpointBegun(1))
    log.record(RetainedSnapshot(["hall/door"], [0], [position(2, 7)], 1, 0, 1), payloads=[b"x"])
    log.record(SessionSnapshot("c", state))
    log.record(CheckpointCompleted(1, position(3, 0), 1, 1))
    source = written(log.records, tmp_path, 0, first=3)
    found = await find_stories(
        as_log(source),
        topic_filter="hall/door",
        client="c",
    )
    lines = list(story_lines(found[0], "c", 0))
    assert lines[0].startswith("message on hall/door (earliest known position 2.7), QoS 0 retained")
    (line,) = (one for one in lines if one.startswith("  c "))
    assert line == (
        "  c is not known at that time: the log does not go back that far: "
        "the log begins with record 3"
    )


@pytest.mark.parametrize(
    ("after", "cause"),
    [
        (SessionClosed("pump", "disconnect"), "the client sent DISCONNECT"),
        (
            SessionOpened("pump", True, False, 5),
            "the client connected again before it was published",
        ),
        (SessionExpired("pump", "removed"), "an operator removed it"),
    ],
)
@SHARES
async def test_why_a_will_was_discarded(
    tmp_path: Path, after: Event, cause: str, indexed: float
) -> None:
    log = LogBuilder("n")
    log.record(SessionOpened("pump", False, False, 5))
    log.record(WillArmed("pump", "wills/pump", 1, False, 1, 0), payloads=[b"x"])
    log.record(WillCancelled("pump"), SessionOpened("other", False, False, 5), after)
    source = written(log.records, tmp_path, indexed)
    explained = await explain_no_message(as_log(source), "wills/pump", None, None)
    assert explained.endswith(f" ({cause})")
    wanted = Selection(session="pump", types=(WillCancelled,))
    page = await find_page(as_log(source), wanted, 3, None, backwards=True, payload=False)
    assert [row.said for row in page.rows] == [f"will discarded: {cause}"]


@SHARES
async def test_lost_messages_are_found_without_reading_the_whole_log(
    tmp_path: Path, indexed: float
) -> None:
    log = LogBuilder("n")
    log.record(OPENED)
    log.record(SubscriptionDenied("c", ["hall/+", "cellar"], [0x87, 0x87]))
    log.record(MessageDropped("c", "slow_reader", 2, topics=["hall/door"]))
    for _ in range(300):
        log.record(GRANTED)
        log.record(Unsubscribed("c", ["cellar"]))
    log.record(SubscriptionDenied("c", ["hall/#"], [0x87]))
    log.record(MessageDropped("c", "slow_reader", 3))
    source = written(log.records, tmp_path, indexed)
    source.asked, source.read = [], 0
    explained = await explain_no_message(as_log(source), "hall/door", "c", None)
    _, subscriber, denied, named, unnamed = explained.split("; ")
    assert subscriber.startswith("c is subscribed (hall/+ QoS 0) and connected since 1.0, ")
    assert denied.startswith("c was denied hall/# at 604.0, ")
    assert named.startswith("2 messages on hall/door were dropped for c, the last at 3.0, ")
    assert unnamed.startswith("3 messages were dropped for c, the last at 605.0, ")
    if indexed == 1:
        assert len(source.asked) + source.read < 300


REPLAY = "$replay/all/hall/#"
REPLAYED = (OPENED, Subscribed("c", [(REPLAY, 0)]), ReplayOpened("c", REPLAY, {}))


def reached(through: int, sent: int = 0, **more: Any) -> ReplayReached:
    return ReplayReached("c", REPLAY, {"": position(through, 0)}, sent=sent, **more)


@pytest.mark.parametrize("indexed", [0, 0.5, 1])
@pytest.mark.parametrize(
    ("turns", "said"),
    [
        (
            [[*REPLAYED]],
            f"c has a replay, {REPLAY}, which is at its beginning; this message is 1.0",
        ),
        (
            [[*REPLAYED], [ReplayReached("c", REPLAY, {"": 900})]],
            f"c has a replay, {REPLAY}, which has reached 0.900; this message is 1.0",
        ),
        (
            [[*REPLAYED], [reached(1, 3, left_out={"expired": 1})], [reached(4, 2)]],
            (
                f"c has a replay, {REPLAY}, which read it at 3.0, 2023-11-14 22:13:22.000, with 3 "
                f"messages sent (1 expired)"
            ),
        ),
        (
            [[*REPLAYED], [reached(2, gap={"": [0, position(2, 0)]})]],
            (
                f"c has a replay, {REPLAY}, which lost it: it was cut off unread, as recorded at "
                "3.0, 2023-11-14 22:13:22.000"
            ),
        ),
    ],
)
def test_replays_of_a_client(
    tmp_path: Path, indexed: float, turns: list[list[Event]], said: str
) -> None:
    assert said in told(tmp_path, indexed, [published()], *turns, at=1)


@pytest.mark.parametrize(
    ("opened", "said"),
    [
        (ReplayOpened("c", REPLAY, {"": position(1, 0)}), "begins behind this message"),
        (ReplayOpened("c", REPLAY, {}, start_ms=2_000_000_000_000), "begins behind this message"),
        (ReplayOpened("c", REPLAY, {}, until={"": 5}), "ends before this message"),
        (ReplayOpened("c", REPLAY, {}, until_ms=5), "ends before this message"),
        (
            ReplayOpened("c", REPLAY, {"": position(1, 0)}, last=True),
            "sends only the last message of each topic of that time",
        ),
    ],
    ids=str,
)
def test_replays_that_do_not_read_a_message(
    tmp_path: Path, opened: ReplayOpened, said: str
) -> None:
    text = told(tmp_path, 0, [published()], [*REPLAYED[:2], opened], at=1)
    assert f"c has a replay, {REPLAY}, which {said}" in text


def test_a_replay_beside_a_subscription(tmp_path: Path) -> None:
    text = told(tmp_path, 0, [OPENED, GRANTED], [published()], [*REPLAYED[1:]], at=2)
    assert "was subscribed (hall/+ QoS 0) and connected: sent at QoS 0" in text
    assert f"; it has a replay, {REPLAY}, which is at its beginning" in text


def test_a_replay_as_json(tmp_path: Path) -> None:
    found = story_object(story(tmp_path, 0, [published()], [*REPLAYED], [reached(1, 3)], at=1), "c")
    standing: Any = found["standing"]
    assert standing["replays"] == [
        {
            "filter": REPLAY,
            "through": "1.0",
            "state": "reading",
            "read": "3.0",
            "read_at": "2023-11-14T22:13:22.000Z",
            "sent": 3,
            "left_out": {},
            "cut_off": False,
        }
    ]
