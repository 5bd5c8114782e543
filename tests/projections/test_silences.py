"""Silent clients, holes in topics with their causes, and counts of topics."""

from typing import Any

import pytest
from handmadelogs import HandMade, publish
from indexedlogs import as_log

from eventstore.format.events import SessionClosed, SessionOpened
from eventstore.format.node_events import BrokerStarted
from projections.past.message_history import history_range
from projections.past.silences import gaps, silent_clients, topic_counts
from projections.views.silence_view import (
    gap_object,
    silence_object,
    topic_object,
)

Step = tuple[int, Any, tuple[bytes, ...]]


def at(second: float, made: tuple[Any, tuple[bytes, ...]] | Any) -> Step:
    event, payloads = made if isinstance(made, tuple) else (made, ())
    return round(1000 * second), event, payloads


def every(step: int, first: int, last: int, **about: Any) -> list[Step]:
    return [at(second, publish(b"1", **about)) for second in range(first, last + 1, step)]


OPENED = at(1, SessionOpened("ann", False, True, 4))


async def asked(
    steps: list[Step], now: float, *, live: bool = True, first: int = 1, topic: str = "#"
) -> tuple[list[Any], list[Any]]:
    source = HandMade.timed(steps, first)
    source.live = live
    logs = {"": as_log(source)}

    part = await history_range(logs)
    now_ms = round(1000 * now)
    return (
        await silent_clients(logs, topic, part, now_ms, 10),
        await gaps(logs, topic, part, now_ms, 10),
    )


async def test_a_client_that_goes_on_is_not_silent() -> None:
    assert await asked([OPENED, *every(10, 10, 60)], 85) == ([], [])


async def test_too_few_messages_have_no_usual_interval() -> None:
    assert await asked([OPENED, *every(10, 10, 40)], 1000) == ([], [])


async def test_a_burst_counts_once() -> None:
    bursts = [at(10 * n + k / 100, publish(b"1")) for n in range(1, 7) for k in range(9)]
    clients, holes = await asked([OPENED, *bursts], 85)
    assert (clients, holes) == ([], [])
    clients, _ = await asked([OPENED, *bursts], 200)
    assert clients[0].messages == 54
    assert 9_900 <= clients[0].usual_ms <= 10_000


@pytest.mark.parametrize(
    ("later", "live", "cause"),
    [
        ([], True, "client_silent"),
        ([at(61, SessionClosed("ann", "keep_alive"))], True, "client_away"),
        ([], False, "broker_stopped"),
        (
            [
                at(61, SessionClosed("ann", "closed")),
                at(62, SessionOpened("ann", True, False, 4)),
            ],
            True,
            "client_silent",
        ),
        # the broker crashed and was started late: the client was away without an event
        ([at(190, BrokerStarted("1", crashed=True))], True, "broker_stopped"),
        ([at(61, BrokerStarted("1", crashed=True))], True, "client_away"),
    ],
)
async def test_the_cause_of_a_silence(later: list[Step], live: bool, cause: str) -> None:
    clients, holes = await asked([OPENED, *every(10, 10, 60), *later], 200, live=live)
    (client,), (hole,) = clients, holes
    assert (client.client, client.topic, client.messages, client.usual_ms) == (
        "ann",
        "a",
        6,
        10_000,
    )
    assert client.pause.cause == hole.pause.cause == cause
    for pause in (client.pause, hole.pause):
        assert (pause.start_ms, pause.end_ms) == (60_000, 200_000)
        assert pause.stopped_ms + pause.away_ms + pause.silent_ms == 140_000
    assert hole.after is None
    assert cause in silence_object(client)["cause"]


async def test_a_hole_between_two_messages() -> None:
    steps = [
        OPENED,
        *every(10, 10, 60),
        at(70, SessionClosed("ann", "keep_alive")),
        at(170, SessionOpened("ann", True, False, 4)),
        *every(10, 180, 200),
    ]
    clients, (hole,) = await asked(steps, 210)
    assert clients == []
    assert gap_object(hole) == {
        "topic": "a",
        "client": "ann",
        "before": "7.0",
        "after": "10.0",
        "usual_ms": 10_000,
        "from": "1970-01-01T00:01:00.000Z",
        "to": "1970-01-01T00:03:00.000Z",
        "length_ms": 120_000,
        "cause": "client_away",
        "broker_stopped_ms": 0,
        "client_away_ms": 100_000,
        "client_silent_ms": 20_000,
        "close_reason": "keep_alive",
    }


async def test_what_was_cut_is_a_hole_of_unknown_content() -> None:
    _, holes = await asked([OPENED, *every(10, 10, 60)], 70, first=3)
    assert [(one.pause.cause, one.topic, one.before) for one in holes] == [("log_cut", "", None)]


async def test_a_will_is_no_sign_of_its_client() -> None:
    will, payloads = publish(b"gone")
    will.will = True
    steps = [*every(10, 10, 60), at(70, SessionClosed("ann", "closed")), at(70, (will, payloads))]
    clients, holes = await asked([OPENED, *steps], 200)
    assert clients[0].pause.start_ms == 60_000
    assert clients[0].pause.cause == holes[0].pause.cause == "client_away"


async def test_sessions_of_the_broker_have_no_connection() -> None:
    _, (hole,) = await asked(every(10, 10, 60, session="$nats"), 200)
    assert hole.pause.cause == "not_known"


async def test_counts_of_topics() -> None:
    steps = [
        at(n, publish(b"x" * n, topic=topic))
        for n, topic in enumerate(["a", "a/b", "a/c", "a/b"], 1)
    ]
    logs = {"": as_log(HandMade.timed(steps))}

    async def ask(levels: int) -> list[Any]:
        return await topic_counts(logs, "#", await history_range(logs), levels)

    found = await ask(0)
    assert [(one.topic, one.messages, one.bytes, one.last_ms) for one in found] == [
        ("a", 1, 1, 1000),
        ("a/b", 2, 6, 4000),
        ("a/c", 1, 3, 3000),
    ]
    grouped = await ask(1)
    assert [(one.topic, one.topics, one.messages, one.last_ms) for one in grouped] == [
        ("a", 1, 1, 1000),
        ("a/#", 2, 3, 4000),
    ]
    assert topic_object(grouped[1])["last_at"] == "1970-01-01T00:00:04.000Z"
