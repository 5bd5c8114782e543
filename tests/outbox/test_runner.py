"""The runner of a destination, with a log, a broker and a sink that the test plays."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import pytest
from harness.waiting import happens

from eventstore.format.positions import from_runs, position
from outbox.control import BrokerUnavailable, RecordedCursor
from outbox.log_reader import CursorLost, LogPortion
from outbox.runner import BatchLimits, DestinationRunner
from outbox.sink import Destination, OutboxMessage, RefusedMessages, TryAgain

RUN = position(1, 0)
LIMITS = BatchLimits(messages=3, wait=0.0, retry_base=0.001, retry_most=0.002)
Answer = Callable[[Sequence[int]], None]


def turn(record: int, *numbers: int, **more: Any) -> LogPortion:
    """A turn of one record, with messages of these numbers."""
    messages = [
        OutboxMessage(
            position(record, index), position(record, index), number, 1000, "t", b"x", 1, False, "c"
        )
        for index, number in enumerate(numbers)
    ]
    return LogPortion(position(record + 1, 0) - 1, 1000, messages, **more)


class Log:
    """Turns that may become more; `cut` is the first record that is left."""

    def __init__(self, *turns: LogPortion) -> None:
        self.turns = list(turns)
        self.cut = 0

    async def messages_at(self, refs: Sequence[int]) -> list[OutboxMessage]:
        return [
            message._replace(number=0)
            for portion in self.turns
            for message in portion.messages
            if message.position in refs
        ]

    async def after(self, through: int, number: int) -> AsyncIterator[LogPortion]:
        if through >> 20 < self.cut - 1:
            raise CursorLost
        seen = 0
        while True:
            for portion in self.turns[seen:]:
                seen += 1
                if portion.through > through:
                    left = [each for each in portion.messages if each.at > through]
                    yield LogPortion(portion.through, 1000, left, missing=portion.missing)
            await asyncio.sleep(0.001)


class Control:
    """The broker: it keeps the cursor, unless it is away."""

    def __init__(self) -> None:
        self.cursor = RecordedCursor(RUN, RUN, 0, 0, paused=False)
        self.away = False
        self.retry: tuple[int, ...] = ()
        self.asked = 0
        """How often the runner asked where to begin."""
        self.requests: list[Mapping[str, Any]] = []
        self.shown: list[Mapping[str, Any]] = []

    async def cursors(self) -> dict[str, RecordedCursor]:
        self._check()
        self.asked += 1
        return {"erp": self.cursor}

    async def record(self, request: Mapping[str, Any]) -> RecordedCursor:
        self._check()
        self.shown.append(request["shown"])
        refused = {ref for refs, _, _ in request["refused"] for ref in from_runs(refs)}
        done = {*request["retried"], *refused}
        self.retry = tuple(ref for ref in self.retry if ref not in done)
        if request["run"] == self.cursor.run and request["through"] >= self.cursor.through:
            self.requests.append(request)
            self.move(request["through"], request["number"], paused=self.cursor.paused)
        return replace(self.cursor, retry=self.retry)

    def move(self, through: int, number: int = 0, *, paused: bool = False) -> None:
        self.cursor = RecordedCursor(self.cursor.run, through, 0, number, paused)

    def _check(self) -> None:
        if self.away:
            raise BrokerUnavailable("away")

    @property
    def waiting_ms(self) -> int:
        return self.shown[-1]["waiting_ms"] if self.shown else -1

    @property
    def refused(self) -> list[int]:
        groups = [group for request in self.requests for group in request["refused"]]
        return [ref for refs, _, _ in groups for ref in from_runs(refs)]

    @property
    def count(self) -> int:
        return sum(request["count"] for request in self.requests)


class Target:
    """The sink: `answer` may raise; what it does not refuse is stored."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.attempts: list[list[int]] = []
        self.answer: Answer = lambda _numbers: None
        self.opened: list[Destination] = []
        self.opening: Callable[[], None] = lambda: None
        self.closed = False

    async def open(self, about: Destination) -> None:
        self.opened.append(about)
        self.opening()

    async def send(self, batch: Sequence[OutboxMessage]) -> None:
        numbers = [message.number for message in batch]
        self.attempts.append(numbers)
        await asyncio.sleep(0)
        self.answer(numbers)
        self.batches.append(numbers)

    async def close(self) -> None:
        self.closed = True

    @property
    def stored(self) -> list[int]:
        return [number for batch in self.batches for number in batch]


class Scene:
    """All three, and the runner between them."""

    def __init__(self, *turns: LogPortion, now: Callable[[], float] = lambda: 1.0) -> None:
        self.log, self.control, self.sink = Log(*turns), Control(), Target()
        self._now = now
        self.erased: set[int] = set()
        """Keys that are destroyed."""

    async def __aenter__(self) -> Self:
        runner = DestinationRunner(
            "erp",
            "n",
            self.sink,
            lambda: self.log,  # type: ignore[arg-type,return-value]
            self.control,
            LIMITS,
            self._now,
            self.erased.__contains__,
        )
        self.runner = asyncio.create_task(runner.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.runner.cancel()
        await asyncio.wait([self.runner])
        assert self.sink.closed

    async def stores(self, *numbers: int) -> None:
        await happens(lambda: self.sink.stored == [*numbers], f"{numbers}")

    async def is_through(self, record: int) -> None:
        await happens(lambda: self.control.cursor.through == position(record + 1, 0) - 1, "cursor")

    async def waits_since(self, time_ms: int) -> None:
        await happens(lambda: self.control.waiting_ms == time_ms, "the age")


def refusing(*numbers: int, code: int = 422, at: Sequence[int] = ()) -> Answer:
    """Refuse batches with one of these messages."""
    return raising(lambda: RefusedMessages("poison", code, at), *numbers)


def away(*numbers: int) -> Answer:
    """Be away for batches with one of these messages; none: for all."""
    return raising(lambda: TryAgain("down"), *numbers)


def raising(error: Callable[[], Exception], *numbers: int) -> Answer:
    def answer(batch: Sequence[int]) -> None:
        if not numbers or {*numbers} & {*batch}:
            raise error()

    return answer


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_REPORT_EVERY", "_ASK_AGAIN", "_SHOW_EVERY", "_IDLE_REPORT"):
        monkeypatch.setattr(f"outbox.runner.{name}", 0.01)


async def _in_order() -> None:
    async with Scene(turn(2, 1, 2), turn(3), turn(4, 3, 4, 5, 6, 7)) as scene:
        await scene.stores(1, 2, 3, 4, 5, 6, 7)
        assert max(map(len, scene.sink.batches)) <= LIMITS.messages
        await scene.is_through(4)
        assert (scene.control.count, scene.control.cursor.number) == (7, 7)


async def _at_a_stop() -> None:
    async with Scene(turn(2, 1, 2)) as scene:
        await scene.stores(1, 2)
    assert scene.control.cursor.through == position(3, 0) - 1


async def _retried() -> None:
    scene = Scene(turn(2, 1, 2), turn(3, 3))

    def answer(_numbers: Sequence[int]) -> None:
        if len(scene.sink.attempts) < 4:
            raise TryAgain("down", 0.0 if len(scene.sink.attempts) == 1 else None)

    scene.sink.answer = answer
    async with scene:
        await happens(lambda: scene.sink.stored[:2] == [1, 2])
        await happens(lambda: scene.sink.stored == [1, 2, 3])
        assert all(each == scene.sink.attempts[0] for each in scene.sink.attempts[:4])


async def _refused_by_halves() -> None:
    scene = Scene(turn(2, 1, 2, 3), turn(3, 4))
    scene.sink.answer = refusing(2)
    async with scene:
        await scene.stores(1, 3, 4)
        await happens(lambda: scene.control.refused == [position(2, 1)], "the refusal")
        await scene.is_through(3)
        assert scene.control.count == 3


async def _refused_by_name() -> None:
    scene = Scene(turn(2, 1, 2, 3))
    scene.sink.answer = refusing(2, code=0x97, at=[position(2, 1)])
    async with scene:
        await scene.stores(1, 3)
        await happens(lambda: scene.control.refused == [position(2, 1)], "the refusal")
        assert scene.sink.attempts == [[1, 2, 3], [1, 3]]


async def _many_refused() -> None:
    """The broker is told of them in time: it takes 2000 at once."""
    scene = Scene(turn(2, *range(1, 2501)), turn(3, 2501))

    def answer(numbers: Sequence[int]) -> None:
        if numbers[0] <= 2500:
            raise RefusedMessages(f"poison {numbers[0]}", 422)

    scene.sink.answer = answer
    async with scene:
        await scene.stores(2501)
        await happens(lambda: len(scene.control.refused) == 2500, "the refusals")
        assert max(len(request["refused"]) for request in scene.control.requests) <= 1000


async def _expired() -> None:
    moment = [1000.0]
    portion = turn(2, 1, 2, 3)
    second = portion.messages[1]
    portion.messages[1] = second._replace(expires=1001)
    scene = Scene(portion, now=lambda: moment[0])

    def answer(_numbers: Sequence[int]) -> None:
        if moment[0] < 1002:
            moment[0] += 1
            raise TryAgain("down")

    scene.sink.answer = answer
    async with scene:
        await scene.stores(1, 3)
        assert scene.sink.attempts[0] == [1, 2, 3]
        await happens(lambda: scene.control.cursor.number == 3, "the number, which counts all")


async def _broker_away() -> None:
    scene = Scene(turn(2, 1))
    async with scene:
        await scene.stores(1)
        scene.control.away = True
        scene.log.turns.append(turn(3, 2))
        await scene.stores(1, 2)
        scene.control.away = False
        await scene.is_through(3)
        assert scene.control.count == 2


async def _paused() -> None:
    scene = Scene(turn(2, 1))
    async with scene:
        await scene.stores(1)
        scene.control.move(position(3, 0) - 1, 1, paused=True)
        await happens(lambda: scene.sink.opened, "the beginning")
        await happens(lambda: scene.control.asked > 2, "the runner to wait")
        scene.log.turns.append(turn(3, 2))
        asked = scene.control.asked
        await happens(lambda: scene.control.asked > asked + 2, "it to wait longer")
        assert scene.sink.stored == [1]
        scene.control.move(position(3, 0) - 1, 1)
        await scene.stores(1, 2)


async def _skipped() -> None:
    scene = Scene(turn(2, 1))
    scene.sink.answer = away(1)
    async with scene:
        await happens(lambda: len(scene.sink.attempts) > 2, "attempts")
        scene.log.turns.append(turn(3, 2))
        scene.control.move(position(3, 0) - 1, 1)
        await scene.stores(2)


async def _cut() -> None:
    scene = Scene(turn(9, 5))
    scene.log.cut = 9
    async with scene:
        await happens(lambda: scene.sink.opened, "the beginning")
        scene.control.move(position(9, 0) - 1, 4)
        await scene.stores(5)


async def _waits_for_its_sink() -> None:
    """What waits is known although the sink cannot be opened, and before a later batch."""
    scene = Scene(turn(2, 1, 2, 3, 4))
    scene.sink.opening = lambda: away()([])
    async with scene:
        await scene.waits_since(1000)
        scene.sink.opening = lambda: None
        scene.sink.answer = away(4)
        await happens(lambda: len(scene.sink.attempts) > 3, "the second batch")
        asked = len(scene.control.shown)
        await happens(lambda: len(scene.control.shown) > asked + 2, "reports")
        assert scene.control.waiting_ms == 1000
        scene.sink.answer = lambda _numbers: None
        await scene.stores(1, 2, 3, 4)
        await scene.waits_since(0)


async def _waits_while_paused() -> None:
    scene = Scene(turn(2, 1))
    scene.control.move(RUN, paused=True)
    async with scene:
        await scene.waits_since(1000)
        scene.control.move(position(3, 0) - 1, 1, paused=True)  # skipped
        await scene.waits_since(0)
        assert scene.sink.attempts == []


async def _skipped_while_it_waits() -> None:
    scene = Scene(turn(2, 1), turn(3, 2, 3, 4, 5), turn(4, 6))
    scene.sink.answer = away()
    async with scene:
        await scene.waits_since(1000)
        scene.control.move(position(5, 0) - 1, 6, paused=True)
        await scene.waits_since(0)


async def _gone() -> None:
    """A message that the log no longer has is reported when the cursor passes it."""
    scene = Scene(turn(2, 1, missing=[(position(2, 1), 1)]), turn(3, 2))
    async with scene:
        await scene.stores(1, 2)
        await happens(
            lambda: (
                [each for r in scene.control.requests for each in r["lost"]]
                == [[position(2, 1) - 1, position(2, 1), 1, "cut"]]
            ),
            "the loss",
        )


async def _many_gone() -> None:
    """Many lost messages are reported in parts, each with the cursor behind it."""
    lost = [(position(2, 2 * index), 1) for index in range(1, 2502)]
    scene = Scene(turn(2, 1, missing=lost), turn(3, 2))
    async with scene:
        await scene.stores(1, 2)
        reported = [each for r in scene.control.requests for each in r["lost"]]
        assert reported[:2000] == [[at - 1, at, count, "cut"] for at, count in lost[:2000]]
        parts = [request for request in scene.control.requests if request["lost"]]
        assert all(len(part["lost"]) <= 1000 for part in parts)
        assert all(part["through"] >= part["lost"][-1][1] for part in parts)


def sealed(portion: LogPortion, *keys: int) -> LogPortion:
    """A turn whose messages are sealed under these keys; 0: not at all."""
    portion.messages[:] = [
        message._replace(key=key) for message, key in zip(portion.messages, keys, strict=True)
    ]
    return portion


def given_up(scene: Scene) -> list[list[Any]]:
    return [each for request in scene.control.requests for each in request["lost"]]


async def _erased() -> None:
    """What is erased while it waits is never sent, and reported as ranges of due messages."""
    scene = Scene(
        *(sealed(turn(2, 1, 2, 3), 7, 7, 8), sealed(turn(3, 4), 7), sealed(turn(5, 5), 7)),
        *(sealed(turn(6, 7), 7), turn(7, 8)),
    )

    def answer(_numbers: Sequence[int]) -> None:
        if len(scene.sink.attempts) == 2:
            scene.erased.add(7)
        if len(scene.sink.attempts) < 4:
            raise TryAgain("down")

    scene.sink.answer = answer
    async with scene:
        await scene.stores(3, 8)
        assert scene.sink.attempts[1] == [1, 2, 3]
        assert scene.sink.attempts[2] == [3]
        await happens(lambda: scene.control.cursor.number == 8, "the number, which counts all")
        assert given_up(scene) == [
            [position(2, 0) - 1, position(2, 1), 2, "erased"],
            [position(3, 0) - 1, position(5, 0), 2, "erased"],
            [position(6, 0) - 1, position(6, 0), 1, "erased"],  # number 6 was due before it
        ]
        assert (scene.control.count, scene.control.refused) == (2, [])
        await happens(lambda: scene.control.requests[-1]["shown"]["erased"] == 5, "what is shown")


async def _refused_when_erased() -> None:
    """A message that is erased when its refusal comes is no refused message."""
    scene = Scene(sealed(turn(2, 1, 2), 7, 8))

    def answer(numbers: Sequence[int]) -> None:
        scene.erased.add(7)
        if 1 in numbers:
            raise RefusedMessages("poison", 422, [position(2, 0)])

    scene.sink.answer = answer
    async with scene:
        await scene.stores(2)
        await happens(lambda: given_up(scene), "the report")
        assert given_up(scene) == [[position(2, 0) - 1, position(2, 0), 1, "erased"]]
        assert scene.control.refused == []


async def _not_quoted() -> None:
    """What a destination says of sealed contents may quote them, and is not recorded."""
    scene = Scene(sealed(turn(2, 1, 2), 0, 7))
    scene.sink.answer = raising(lambda: RefusedMessages("not a number: secret", 422))
    async with scene:
        await happens(lambda: len(scene.control.refused) == 2, "the refusals")
        groups = [group for request in scene.control.requests for group in request["refused"]]
        assert [reason for _, reason, _ in groups] == [
            "not a number: secret",
            "the answer is not recorded, because the content is sealed",
        ]


async def _erased_before_it_is_sent_again() -> None:
    """A refused message that is erased waits no longer, and is behind the cursor already."""
    scene = Scene(sealed(turn(2, 1), 7), turn(3, 2))
    async with scene:
        await scene.stores(1, 2)
        scene.erased.add(7)
        scene.control.retry = (position(2, 0),)
        await happens(
            lambda: any(request["retried"] for request in scene.control.requests), "the report"
        )
        assert scene.sink.stored == [1, 2]
        assert given_up(scene) == []


async def _refused_again() -> None:
    """A message that is refused again does not count as stored."""
    scene = Scene(turn(2, 1), turn(3, 2))
    async with scene:
        await scene.stores(1, 2)

        left = [RefusedMessages("poison", 422)]

        def refuse(_numbers: Sequence[int]) -> None:
            if left:
                raise left.pop()

        scene.sink.answer = refuse
        scene.control.retry = (position(2, 0), position(3, 0))
        await happens(lambda: len(scene.control.refused) == 1, "the second refusal")
        await happens(
            lambda: any(request["retried"] for request in scene.control.requests), "the report"
        )
        retried = [ref for request in scene.control.requests for ref in request["retried"]]
        assert (set(retried), scene.control.refused) == ({position(3, 0)}, [position(2, 0)])


async def _paused_before_it_opens() -> None:
    """An operator pauses a destination whose sink cannot be opened, and resumes it."""
    scene = Scene(turn(2, 1))

    def opening() -> None:
        scene.control.move(RUN, paused=True)
        raise TryAgain("away")

    scene.sink.opening = opening
    async with scene:
        await happens(lambda: scene.control.asked > 3, "the pause")
        assert len(scene.sink.opened) == 1
        scene.sink.opening = lambda: None
        scene.control.move(RUN)
        await scene.stores(1)


async def _spans_refused_again() -> None:
    """Several spans of one message are refused, and refused again."""
    portion = turn(2, 1)
    portion.messages.append(portion.messages[0]._replace(number=2))
    scene = Scene(portion)
    scene.sink.answer = refusing(0, 1, 2)
    async with scene:
        await happens(lambda: len(scene.control.refused) == 1, "the refusal")
        scene.control.retry = (position(2, 0),)
        await happens(lambda: len(scene.control.refused) == 2, "the second refusal")
        scene.log.turns.append(turn(3, 3))
        await scene.stores(3)


async def _refused_before_a_crash() -> None:
    """A refusal is recorded with the cursor behind it, so a crash before that repeats both."""
    scene = Scene(turn(2, 1, 2, 3))
    away = [True]

    def answer(numbers: Sequence[int]) -> None:
        if 1 in numbers:
            raise RefusedMessages("poison", 422, [position(2, 0)])
        if away[0]:
            raise TryAgain("away")

    scene.sink.answer = answer
    async with scene:
        await happens(lambda: scene.sink.attempts.count([2, 3]) > 3, "the attempts")
    assert scene.control.refused == []
    away[0] = False
    scene.sink = Target()
    scene.sink.answer = answer
    async with scene:
        await scene.stores(2, 3)
        await happens(lambda: bool(scene.control.refused), "the refusal")
    assert scene.control.refused == [position(2, 0)]
    assert scene.control.cursor.through == position(3, 0) - 1


async def _refused_while_its_message_is_open() -> None:
    """A span is refused before the cursor may be behind its message; others of it follow."""
    early = turn(2, 1)
    spans = [each._replace(at=RUN + 1, position=position(2, 0)) for each in early.messages]
    early = replace(early, through=position(2, 0) - 1, messages=spans)
    scene = Scene(early, turn(3, 2))
    scene.sink.answer = refusing(1, at=[RUN + 1])
    async with scene:
        await scene.stores(2)
    assert scene.control.refused == [position(2, 0)]


async def _sent_again() -> None:
    """Refused messages come again when an operator asks, and are reported once."""
    scene = Scene(turn(2, 1, 2))
    async with scene:
        await scene.stores(1, 2)
        scene.control.retry = (position(2, 1), position(7, 0))
        await scene.stores(1, 2, 0)
        await happens(lambda: not scene.control.retry, "the report")
        assert scene.control.count == 3


@pytest.mark.parametrize(
    "scenario",
    [
        *(_in_order, _at_a_stop, _retried, _refused_by_halves, _refused_by_name, _many_refused),
        _expired,
        *(_broker_away, _paused, _skipped, _cut, _gone, _many_gone, _sent_again),
        *(_refused_again, _paused_before_it_opens, _spans_refused_again),
        *(_waits_for_its_sink, _waits_while_paused, _skipped_while_it_waits),
        *(_refused_before_a_crash, _refused_while_its_message_is_open),
        *(_erased, _refused_when_erased, _not_quoted, _erased_before_it_is_sent_again),
    ],
    ids=lambda scenario: scenario.__name__.lstrip("_"),
)
def test_a_destination(scenario: Callable[[], Any]) -> None:
    asyncio.run(scenario())
