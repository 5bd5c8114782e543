"""The bridge inside the broker: its connection, and the handling of its failure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any, Self

import pytest

from actors.bridge import bridge_supervisor as module
from actors.bridge.bridge import Connected, Disconnected
from actors.bridge.bridge_supervisor import BridgeSupervisor
from actors.limits.bridge_options import BridgeOptions
from actors.session.session_messages import Batch, Publication
from eventstore.errors import BadNatsOptions, NatsUnavailable
from eventstore.log.message_store import StoredMessages
from eventstore.nats.connection import ConnectionOptions
from protocol.nats.mapping import Mapping

ACCESS = ConnectionOptions(urls=("nats://h",))
TROUBLE = RuntimeError("made up")


class Log:
    """The log lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, line: str, **_more: object) -> None:
        self.lines.append(line)

    warning = error = info


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def monotonic(self) -> float:
        return self.now

    def time_ms(self) -> int:
        return round(self.now * 1000)

    def after(self, delay: float, callback: Callable[[], None]) -> None:
        self.timers.append((self.now + delay, callback))

    def to_next(self) -> float:
        """Go to the next timer; return how long that took."""
        self.timers.sort(key=lambda timer: timer[0])
        (due, callback), begun = self.timers.pop(0), self.now
        self.now = due
        callback()
        return due - begun


class Actor:
    """A bridge that does nothing."""

    waiting_ms = 0
    behind = False

    def __init__(self, *parts: Any) -> None:
        self.stats = parts[5]
        self.began = 0
        self.ended: list[str] = []
        self.stopped = False
        self.told: list[object] = []

    def begin(self) -> None:
        self.began += 1
        self.stats.connected = True

    def end(self, reason: str) -> None:
        self.ended.append(reason)

    def stop(self) -> None:
        self.stopped = True

    async def settle_last(self) -> None:
        self.ended.append("settled")

    def packets(self, *_about: object) -> None:
        raise TROUBLE

    published = packets

    @property
    def recorded(self) -> Actor:
        return self

    add = packets


class FakeLink:
    """A connection that records subscriptions; `outcomes` are the results of the attempts."""

    outcomes: list[Exception | asyncio.Event]
    opened: list[FakeLink]

    def __init__(self, callbacks: dict[str, Callable[..., None]]) -> None:
        self.callbacks = callbacks
        self.inbox = b"_INBOX.x."
        self.subscribed: dict[int, bytes] = {}
        self.reading = True
        self.closed = False
        self._last = 0

    @classmethod
    async def open(cls, _access: ConnectionOptions, **callbacks: Callable[..., None]) -> Self:
        outcome = cls.outcomes.pop(0) if cls.outcomes else None
        if isinstance(outcome, Exception):
            raise outcome
        if outcome is not None:
            await outcome.wait()
        link = cls(callbacks)
        cls.opened.append(link)
        return link

    def write(self, _data: bytes) -> bool:
        return True

    def subscribe(self, subject: bytes) -> int:
        self._last += 1
        self.subscribed[self._last] = subject
        return self._last

    def unsubscribe(self, sid: int) -> None:
        del self.subscribed[sid]

    def fence(self, done: Callable[[], None]) -> None:
        """Never confirm anything."""

    def resume_reading(self) -> None:
        self.reading = True

    async def close(self) -> None:
        self.closed = True


class Place:
    """A broker around a host."""

    def __init__(self, log: Log, actors: list[Actor]) -> None:
        self.log = log
        self.actors = actors
        self.clock = Clock()
        self.dropped: dict[str, int] = {}
        node: Any = SimpleNamespace(
            root=None,
            clock=self.clock,
            timers=self.clock,
            kernel=SimpleNamespace(
                spawn=lambda actor, _parent: actors.append(actor),
                tell=lambda actor, message: actor.told.append(message),
            ),
            count_dropped=self._dropped,
            state=SimpleNamespace(destinations={}),
        )
        self.bridge = BridgeSupervisor(node, BridgeOptions(Mapping()))

    def _dropped(self, reason: str, count: int) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + count

    @property
    def link(self) -> FakeLink:
        return FakeLink.opened[-1]

    def publish(self, qos: int = 0, client: str = "c") -> None:
        content = StoredMessages(1, [b"a", b"b"], [b"", b""], 0, publishers=(client,))
        if qos:
            self.bridge.recorded(qos, content, (1, 2), 1)
            return
        batch = Batch(qos, content.topics, content.payloads, ())
        self.bridge.published(Publication(client, batch, content))


@pytest.fixture
async def place(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Place]:
    actors: list[Actor] = []
    log = Log()
    FakeLink.outcomes, FakeLink.opened = [], []
    monkeypatch.setattr(module, "Bridge", Actor)
    monkeypatch.setattr(module, "BatchClient", FakeLink)
    monkeypatch.setattr(module, "_log", log)
    monkeypatch.setattr(module, "_AT_ONCE", 0.05)
    monkeypatch.setattr(module, "_DIAL_AGAIN", 0)
    made = Place(log, actors)
    yield made
    await made.bridge.stop()


# ------------------------------------------------------------------ connecting


async def test_a_reachable_server_is_connected_at_once(place: Place) -> None:
    place.bridge.added("one", "a")
    await place.bridge.start(ACCESS)
    assert [actor.began for actor in place.actors] == [1]
    assert list(place.link.subscribed.values()) == [b"a"]
    assert place.log.lines == []
    await place.bridge.stop()
    assert place.actors[0].ended == ["settled", "broker_stopped"]
    assert place.link.closed


async def test_a_server_that_is_away_is_not_waited_for(place: Place) -> None:
    there = asyncio.Event()
    FakeLink.outcomes = [there]
    await place.bridge.start(ACCESS)
    assert place.actors == []
    there.set()
    while not place.actors:  # noqa: ASYNC110 - of any kind
        await asyncio.sleep(0)


async def test_an_attempt_ends_with_the_broker(place: Place) -> None:
    FakeLink.outcomes = [asyncio.Event()]
    await place.bridge.start(ACCESS)
    await place.bridge.stop()
    assert FakeLink.opened == []


async def test_impossible_options_are_refused_at_once(place: Place) -> None:
    FakeLink.outcomes = [BadNatsOptions("no such file")]
    with pytest.raises(BadNatsOptions, match="no such file"):
        await place.bridge.start(ACCESS)


async def test_each_connection_error_is_logged_once(place: Place) -> None:
    FakeLink.outcomes = [
        NatsUnavailable("refused"),
        NatsUnavailable("refused"),
        RuntimeError("odd\x1b[31m"),
        NatsUnavailable("too old"),
        RuntimeError("odd\x1b[31m"),
        NatsUnavailable("refused"),
    ]
    await place.bridge.start(ACCESS)
    while not place.actors:  # noqa: ASYNC110 - of any kind
        await asyncio.sleep(0)
    assert place.log.lines == [
        "bridge: refused; trying again",
        "bridge: cannot connect to NATS: RuntimeError: odd\\u001b[31m; trying again",
        "bridge: too old; trying again",
        "bridge: connected to NATS",
    ]


async def test_options_that_become_invalid_are_logged(place: Place) -> None:
    class Attempt(asyncio.Event):
        async def wait(self) -> bool:
            await super().wait()
            raise BadNatsOptions("no such file any more")

    FakeLink.outcomes = [attempt := Attempt()]
    await place.bridge.start(ACCESS)
    attempt.set()
    while not place.actors:  # noqa: ASYNC110 - of any kind
        await asyncio.sleep(0)
    assert place.log.lines == [
        "bridge: no such file any more; trying again",
        "bridge: connected to NATS",
    ]


# ------------------------------------------------------------------ failing


async def test_one_that_fails_begins_again_later_and_later(place: Place) -> None:
    await place.bridge.start(ACCESS)
    pauses = []
    for _ in range(8):
        place.bridge.failed(TROUBLE)
        pauses.append(place.clock.to_next())
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    assert [actor.began for actor in place.actors] == [1] * 9
    assert [actor.ended for actor in place.actors] == [["failed"]] * 8 + [[]]
    place.clock.now += 60
    place.bridge.failed(TROUBLE)
    assert place.clock.to_next() == 1
    assert place.log.lines[:2] == [
        "the bridge failed: it restarts in 1 s",
        "the bridge was restarted",
    ]
    assert place.log.lines[-4:] == [
        "the bridge failed: it restarts in 60 s",
        "the bridge was restarted",
        "the bridge failed: it restarts in 1 s",
        "the bridge was restarted",
    ]


async def test_a_disabled_bridge_reports_it(place: Place) -> None:
    place.bridge.added("one", "a")
    await place.bridge.start(ACCESS)
    place.link.reading = False
    assert place.bridge.stats.connected
    place.publish(1)  # fails
    assert not place.bridge.stats.connected
    assert place.link.subscribed == {}
    assert place.link.reading
    assert place.dropped == {}
    place.publish(0)
    place.publish(1)  # the log has these
    place.publish(0, "$nats")
    assert place.dropped == {"bridge_unavailable": 2}
    place.publish(0, "c")
    assert place.dropped == {"bridge_unavailable": 4}
    place.bridge.added("one", "b")
    place.bridge.removed("one", "a")
    assert place.link.subscribed == {}
    place.clock.to_next()
    assert place.bridge.stats.connected
    assert list(place.link.subscribed.values()) == [b"b"]


async def test_only_one_bridge_runs_at_a_time(place: Place) -> None:
    await place.bridge.start(ACCESS)
    place.bridge.failed(TROUBLE)
    place.bridge.failed(TROUBLE)  # of the one that is gone
    assert len(place.clock.timers) == 1
    place.clock.to_next()
    place.bridge._begin()
    assert len(place.actors) == 2


async def test_a_failed_start_is_retried(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_actor: Actor) -> None:
        raise TROUBLE

    with monkeypatch.context() as patched:
        patched.setattr(Actor, "begin", fail)
        await place.bridge.start(ACCESS)
    assert not place.bridge.stats.connected
    place.clock.to_next()
    assert [actor.began for actor in place.actors] == [0, 1]


@pytest.mark.parametrize("what", ["added", "removed"])
async def test_subscribers_do_not_notice_a_bridge_failure(
    place: Place, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    await place.bridge.start(ACCESS)
    if what == "removed":
        place.bridge.added("one", "a")

    def fail(*_about: object) -> None:
        raise TROUBLE

    with monkeypatch.context() as patched:
        patched.setattr(FakeLink, "fence", fail)
        getattr(place.bridge, what)("one", "a")
    assert place.log.lines == ["the bridge failed: it restarts in 1 s"]
    place.clock.to_next()
    assert place.actors[1].began == 1
    assert list(place.link.subscribed.values()) == ([b"a"] if what == "added" else [])


async def test_events_of_the_connection(place: Place) -> None:
    place.bridge.added("one", "#")
    place.bridge.added("one", "a")
    await place.bridge.start(ACCESS)
    tell, interest = place.link.callbacks, place.bridge.interest
    for _ in range(2):
        assert len(interest.place(b"a").sids) == 2
        tell["on_refused"](">")
        assert len(interest.place(b"a").sids) == 1
        tell["on_down"]()
        tell["on_up"]()
    tell["on_error"]("NATS at h: no")
    assert [type(message) for message in place.actors[0].told] == [Disconnected, Connected] * 2
    back = "bridge: connected to NATS again"
    assert place.log.lines == [back, back, "bridge: NATS at h: no"]
