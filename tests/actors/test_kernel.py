"""The kernel: pykka's actors on an event loop."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, ClassVar

import pykka
import pytest

from actors.kernel import kernel as kernel_module
from actors.kernel.actor import DeferredRead, LoopActor, describe
from actors.kernel.kernel import Kernel
from actors.kernel.references import ActorFailed


class Loop:
    """What the kernel asks for a turn."""

    def __init__(self) -> None:
        self.asked: list[Callable[[], None]] = []
        self.kernel = Kernel(self.asked.append)

    def run(self) -> int:
        """Run the requested turns until there are none; return their number."""
        turns = 0
        while self.asked:
            self.asked.pop(0)()
            turns += 1
        return turns


class Recorder(LoopActor):
    """Keeps its messages; a callable is called with the actor."""

    def __init__(self, journal: list[Any] | None = None, name: str = "") -> None:
        super().__init__()
        self.seen: list[Any] = []
        self.undelivered: list[Any] = []
        self.life: list[str] = []
        self.journal = journal
        self.name = name

    def on_start(self) -> None:
        self.life.append("start")

    def on_stop(self) -> None:
        self.life.append("stop")

    def on_failure(
        self,
        exception_type: type[BaseException] | None,
        exception_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.life.append(f"failure {exception_value}")

    def on_receive(self, message: Any) -> Any:
        if callable(message):
            return message(self)
        self.seen.append(message)
        if self.journal is not None:
            self.journal.append((self.name, message))
        return f"got {message}"

    def on_dead_letters(self, messages: list[Any]) -> None:
        self.undelivered += messages


def fail(_actor: LoopActor) -> None:
    raise ValueError("boom")


@pytest.fixture
def loop() -> Loop:
    return Loop()


# Telling.


def test_nothing_happens_before_the_turn_and_everything_in_it(loop: Loop) -> None:
    actor = Recorder()
    ref = loop.kernel.spawn(actor)
    for number in range(5):
        ref.tell(number)
    assert (actor.seen, len(loop.asked), actor.mailbox_depth) == ([], 1, 5)
    assert loop.kernel.busy
    assert loop.run() == 1
    assert (actor.seen, actor.mailbox_depth, actor.handled) == ([0, 1, 2, 3, 4], 0, 5)
    assert not loop.kernel.busy


def test_a_turn_runs_to_completion_then_ends_once(loop: Loop) -> None:
    ended: list[int] = []
    first, second = Recorder(), Recorder()
    loop.kernel.turn_ended = lambda: ended.append(len(first.seen) + len(second.seen))
    loop.kernel.spawn(first)
    loop.kernel.spawn(second)

    def ping(count: int) -> Callable[[Recorder], None]:
        def handle(actor: Recorder) -> None:
            actor.seen.append(count)
            if count:
                other = second if actor is first else first
                loop.kernel.tell(other, ping(count - 1))

        return handle

    loop.kernel.tell(first, ping(100))
    loop.run()
    assert ended == [101]
    assert loop.kernel.turns == 1


def test_messages_of_one_sender_keep_their_order(loop: Loop) -> None:
    journal: list[Any] = []
    receiver = Recorder(journal, "r")
    loop.kernel.spawn(receiver)

    def send(start: int) -> Callable[[Recorder], None]:
        def handle(_actor: Recorder) -> None:
            for number in range(start, start + 3):
                loop.kernel.tell(receiver, number)

        return handle

    senders = [Recorder(), Recorder()]
    for at, sender in enumerate(senders):
        loop.kernel.spawn(sender)
        loop.kernel.tell(sender, send(10 * at))
    loop.kernel.tell(senders[0], send(100))
    loop.run()
    seen = receiver.seen
    assert sorted(seen) == [0, 1, 2, 10, 11, 12, 100, 101, 102]
    assert [number for number in seen if number not in (10, 11, 12)] == [0, 1, 2, 100, 101, 102]


def test_messages_to_itself_come_after_waiting_ones(loop: Loop) -> None:
    actor = Recorder()
    loop.kernel.spawn(actor)
    loop.kernel.tell(actor, lambda me: loop.kernel.tell(me, "mine"))
    loop.kernel.tell(actor, "waited")
    loop.run()
    assert actor.seen == ["waited", "mine"]


def test_wake_gives_an_empty_turn(loop: Loop) -> None:
    ended: list[int] = []
    loop.kernel.turn_ended = lambda: ended.append(1)
    loop.kernel.wake()
    loop.kernel.wake()
    assert (loop.run(), ended) == (1, [1])


def test_a_message_at_the_end_of_a_turn_starts_another_turn(loop: Loop) -> None:
    actor = Recorder()
    loop.kernel.spawn(actor)
    later = ["late"]
    loop.kernel.turn_ended = lambda: loop.kernel.tell(actor, later.pop()) if later else None
    loop.kernel.tell(actor, "early")
    assert (loop.run(), actor.seen) == (2, ["early", "late"])


# Stopping.


def test_stop_comes_after_earlier_messages(loop: Loop) -> None:
    actor = Recorder()
    ref = loop.kernel.spawn(actor)
    ref.tell(1)
    actor.stop()
    ref.tell(2)
    assert ref.is_alive()
    loop.run()
    assert (actor.seen, actor.undelivered, actor.life) == ([1], [2], ["start", "stop"])
    assert not ref.is_alive()
    assert (len(loop.kernel), loop.kernel.get(ref.actor_urn)) == (0, None)
    with pytest.raises(pykka.ActorDeadError):
        ref.tell(3)


def test_an_actor_that_stops_itself_stops_behind_its_mailbox(loop: Loop) -> None:
    actor = Recorder()
    loop.kernel.spawn(actor)
    loop.kernel.tell(actor, lambda me: me.stop())
    loop.kernel.tell(actor, "still seen")
    loop.run()
    assert (actor.seen, actor.life) == (["still seen"], ["start", "stop"])


def test_stopping_twice_stops_once(loop: Loop) -> None:
    actor = Recorder()
    loop.kernel.spawn(actor)
    actor.stop()
    actor.stop()
    loop.run()
    assert (actor.life, actor.undelivered) == (["start", "stop"], [])


def test_a_failing_on_undelivered_does_not_stop_the_kernel(loop: Loop) -> None:
    class Bad(Recorder):
        def on_dead_letters(self, messages: list[Any]) -> None:
            raise ValueError("not now")

    parent, bad, other = Recorder(), Bad(), Recorder()
    loop.kernel.spawn(parent)
    loop.kernel.spawn(bad, parent)
    loop.kernel.spawn(other)
    bad.stop()
    loop.kernel.tell(bad, "lost?")
    loop.kernel.tell(bad, "and this?")
    loop.kernel.tell(other, 1)
    loop.run()
    loop.kernel.tell(other, 2)
    loop.run()
    assert other.seen == [1, 2]
    (failed,) = parent.seen
    assert (failed.actor, failed.message, failed.unseen) == (bad, "lost?", ["and this?"])


# Failing.


def test_a_failure_is_reported_to_the_parent_with_unhandled_messages(loop: Loop) -> None:
    parent, child, sibling = Recorder(), Recorder(), Recorder()
    for actor, above in ((parent, None), (child, parent), (sibling, parent)):
        loop.kernel.spawn(actor, above)
    for message in (1, fail, 2, 3):
        loop.kernel.tell(child, message)
    loop.kernel.tell(sibling, "fine")
    loop.run()
    (failed,) = parent.seen
    assert isinstance(failed, ActorFailed)
    assert (failed.actor, failed.message, failed.unseen) == (child, fail, [2, 3])
    assert isinstance(failed.error, ValueError)
    assert (child.seen, child.life) == ([1], ["start", "failure boom"])
    assert child.stopped
    assert child not in list(loop.kernel)
    assert sibling.seen == ["fine"]
    with pytest.raises(pykka.ActorDeadError):
        loop.kernel.tell(child, 4)


def test_messages_sent_before_a_failure_are_delivered(loop: Loop) -> None:
    parent, child, friend = Recorder(), Recorder(), Recorder()
    for actor, above in ((parent, None), (child, parent), (friend, None)):
        loop.kernel.spawn(actor, above)

    def tell_and_fail(actor: LoopActor) -> None:
        loop.kernel.tell(friend, "before")
        loop.kernel.tell(actor, "to myself")
        raise ValueError("boom")

    loop.kernel.tell(child, tell_and_fail)
    loop.run()
    assert friend.seen == ["before"]
    assert parent.seen[0].unseen == ["to myself"]


def test_a_failure_without_a_parent_is_contained(loop: Loop) -> None:
    alone, other = Recorder(), Recorder()
    loop.kernel.spawn(alone)
    loop.kernel.spawn(other)
    loop.kernel.tell(alone, fail)
    loop.kernel.tell(other, 1)
    loop.run()
    assert (alone.stopped, other.seen) == (True, [1])


def test_a_failure_without_a_parent_goes_to_its_replacement(loop: Loop) -> None:
    parent, child = Recorder(), Recorder()
    loop.kernel.spawn(parent)
    loop.kernel.spawn(child, parent)
    parent.stop()
    loop.run()
    loop.kernel.tell(child, fail)
    loop.kernel.tell(child, "unseen")
    loop.run()
    (failed,) = parent.undelivered
    assert (failed.actor, failed.unseen) == (child, ["unseen"])


def test_a_failure_in_on_start_is_reported_to_the_parent(loop: Loop) -> None:
    class Bad(Recorder):
        def on_start(self) -> None:
            self.kernel.tell(self, "first")
            raise ValueError("boom")

    parent, bad = Recorder(), Bad()
    loop.kernel.spawn(parent)
    ref = loop.kernel.spawn(bad, parent)
    loop.run()
    assert not ref.is_alive()
    assert len(loop.kernel) == 1
    assert (parent.seen[0].message, parent.seen[0].unseen) == (None, ["first"])


def test_a_failure_in_on_stop_still_stops(loop: Loop) -> None:
    class Bad(Recorder):
        def on_stop(self) -> None:
            raise ValueError("boom")

    parent, bad = Recorder(), Bad()
    loop.kernel.spawn(parent)
    loop.kernel.spawn(bad, parent)
    bad.stop()
    loop.kernel.tell(bad, "unseen")
    loop.run()
    assert bad.stopped
    assert bad not in list(loop.kernel)
    assert parent.seen[0].unseen == ["unseen"]


def test_a_failure_in_on_failure_hides_nothing(loop: Loop) -> None:
    class Bad(Recorder):
        def on_failure(self, *_exc_info: object) -> None:
            raise RuntimeError("worse")

    parent, bad = Recorder(), Bad()
    loop.kernel.spawn(parent)
    loop.kernel.spawn(bad, parent)
    loop.kernel.tell(bad, fail)
    loop.kernel.tell(bad, "unseen")
    loop.run()
    (failed,) = parent.seen
    assert (str(failed.error), failed.unseen) == ("boom", ["unseen"])


# As pykka's.


def test_refs_are_as_pykka_s(loop: Loop) -> None:
    first, second = Recorder(), Recorder()
    ref, other = loop.kernel.spawn(first), loop.kernel.spawn(second)
    assert isinstance(ref, pykka.ActorRef)
    assert isinstance(first, pykka.Actor)
    assert ref == first.actor_ref != other
    assert {ref: 1}[first.actor_ref]
    assert ref.actor_class is Recorder
    assert ref.actor_urn == first.actor_urn != other.actor_urn
    assert loop.kernel.get(ref.actor_urn) is first
    assert loop.kernel.get("recorder:0") is None
    assert loop.kernel.get(ref.actor_urn.replace("recorder", "other")) is None
    assert loop.kernel.get("nonsense") is None
    assert list(loop.kernel) == [first, second]
    assert first.actor_urn in repr(ref)


def test_actors_need_a_kernel() -> None:
    with pytest.raises(TypeError, match=r"Kernel\.spawn"):
        Recorder.start()


def test_blocking_is_refused(loop: Loop) -> None:
    ref = loop.kernel.spawn(Recorder())
    for call in (lambda: ref.ask(1), ref.stop):
        with pytest.raises(RuntimeError, match="cannot block"):
            call()
    assert loop.run() == 0


async def test_ask_is_answered_in_the_turn(loop: Loop) -> None:
    actor = Recorder()
    ref = loop.kernel.spawn(actor)
    future = ref.ask("x", block=False)
    with pytest.raises(pykka.Timeout):
        future.get()
    loop.run()
    assert future.get() == "got x"
    assert await future == "got x"


async def test_an_exception_is_the_asker_s_and_the_actor_lives(loop: Loop) -> None:
    ref = loop.kernel.spawn(Recorder())
    future = ref.ask(fail, block=False)
    loop.run()
    with pytest.raises(ValueError, match="boom"):
        await future
    assert ref.is_alive()


async def test_asking_the_dead(loop: Loop) -> None:
    ref = loop.kernel.spawn(Recorder())
    assert ref.stop(block=False)
    loop.run()
    with pytest.raises(pykka.ActorDeadError):
        await ref.ask("x", block=False)


async def test_asks_of_an_actor_that_stops_or_fails_are_answered(loop: Loop) -> None:
    for end in (lambda actor: actor.stop(), lambda actor: loop.kernel.tell(actor, fail)):
        parent, actor = Recorder(), Recorder()
        loop.kernel.spawn(parent)
        ref = loop.kernel.spawn(actor, parent)
        end(actor)
        asked, told = ref.ask("x", block=False), ref.stop(block=False)
        ref.tell("told")
        loop.run()
        with pytest.raises(pykka.ActorDeadError):
            await asyncio.wait_for(asked, 1)
        assert await asyncio.wait_for(told, 1) is False
        left = parent.seen[0].unseen if parent.seen else actor.undelivered
        assert left == ["told"]


async def test_stop_is_answered_as_by_pykka(loop: Loop) -> None:
    ref = loop.kernel.spawn(Recorder())
    first, second = ref.stop(block=False), ref.stop(block=False)
    loop.run()
    third = ref.stop(block=False)
    assert [first.get(), second.get(), third.get()] == [True, False, False]


async def test_stop_is_answered_when_on_stop_fails(loop: Loop) -> None:
    class Bad(Recorder):
        def on_stop(self) -> None:
            raise ValueError("boom")

    future = loop.kernel.spawn(Bad()).stop(block=False)
    loop.run()
    assert future.get() is True


@pytest.mark.slow
def test_a_hundred_thousand_actors_start_and_stop(loop: Loop) -> None:
    parent = Recorder()
    loop.kernel.spawn(parent)
    actors = [Recorder() for _ in range(100_000)]
    refs = [loop.kernel.spawn(actor, parent) for actor in actors]
    assert len(loop.kernel) == 100_001
    assert loop.kernel.get(refs[77_777].actor_urn) is actors[77_777]
    for ref in reversed(refs):
        ref.tell("x")
    for actor in actors:
        actor.stop()
    loop.kernel.turn_slice = 1e9  # whatever it takes, in one turn
    assert loop.run() == 1
    assert len(loop.kernel) == 1
    assert sum(len(actor.seen) for actor in actors) == 100_000
    assert not any(ref.is_alive() for ref in refs)


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (b"secret payload", "14 bytes"),
        (bytearray(3), "3 bytes"),
        ("x" * 1000, "'" + "x" * 199 + "..."),
        (5, "5"),
    ],
)
def test_messages_are_described_in_a_bounded_line(message: Any, line: str) -> None:
    assert describe(message) == line


# -------------------------------------------------------------------------- what is put off


def test_low_priority_messages_come_after_all_others(loop: Loop) -> None:
    seen: list[Any] = []
    late, busy = Recorder(seen, "late"), Recorder(seen, "busy")
    for actor in (late, busy):
        loop.kernel.spawn(actor)
    loop.kernel.tell_low_priority(late, 1)
    loop.kernel.tell(busy, lambda _actor: loop.kernel.tell(busy, "more"))
    loop.run()
    assert [entry[0] for entry in seen if entry[0] in {"late", "busy"}][-1] == "late"
    assert [message for name, message in map(tuple, seen[-2:])] == ["more", 1]


def test_messages_to_a_low_priority_actor_stay_in_order(loop: Loop) -> None:
    seen: list[Any] = []
    actor = Recorder(seen, "a")
    loop.kernel.spawn(actor)
    loop.kernel.tell_low_priority(actor, 1)
    loop.kernel.tell(actor, 2)
    loop.kernel.tell_low_priority(actor, 3)
    loop.run()
    assert [entry[1] for entry in seen] == [1, 2, 3]


class Slices:
    """A kernel whose clock each message moves on by a millisecond, and the breaks it takes."""

    def __init__(self, seconds: float = 0.001) -> None:
        self.now = 100.0
        self.asked: list[Callable[[], None]] = []
        self.breaks: list[tuple[float, Callable[[], None]]] = []
        self.handled: list[Any] = []
        self.kernel = Kernel(
            self.asked.append, lambda: self.now, lambda delay, go: self.breaks.append((delay, go))
        )
        slices = self

        class Costly(LoopActor):
            def on_receive(self, message: Any) -> None:
                slices.now += seconds
                slices.handled.append(message)

        self.actors: list[LoopActor] = [Costly() for _ in range(10)]
        for actor in self.actors:
            self.kernel.spawn(actor)

    def turn(self) -> None:
        asked, self.asked[:] = list(self.asked), []
        for one in asked:
            one()


def test_a_turn_runs_a_slice_of_low_priority_messages() -> None:
    slices = Slices()
    for number, actor in enumerate(slices.actors):
        slices.kernel.tell_low_priority(actor, number)
    for handled in (4, 8, 10):
        assert slices.kernel.busy
        slices.turn()
        assert slices.handled == list(range(handled))
    assert not slices.kernel.busy
    assert slices.breaks == []  # nobody else is at work


def test_each_slice_is_followed_by_a_pause_while_others_work() -> None:
    slices = Slices(0.004)
    for number, actor in enumerate(slices.actors[:3]):
        slices.kernel.tell_low_priority(actor, number)
    other = slices.actors[9]
    slices.kernel.tell(other, "told")
    slices.turn()
    assert slices.handled == ["told", 0]
    ((delay, go),) = slices.breaks
    assert delay == pytest.approx(0.004)
    slices.kernel.tell(other, "told again")
    slices.turn()
    assert slices.handled[2:] == ["told again"]
    assert slices.kernel.busy
    assert not slices.asked
    go()
    slices.turn()
    assert slices.handled[3:] == [1]
    slices.now += 1  # no other actor works any longer
    slices.breaks[1][1]()
    slices.turn()
    assert slices.handled[4:] == [2]
    assert len(slices.breaks) == 2
    assert not slices.kernel.busy


def test_others_run_between_the_parts_that_an_actor_schedules() -> None:
    slices = Slices()
    busy, other = slices.actors[:2]
    left = iter(range(5))

    class Again(LoopActor):
        def on_receive(self, message: Any) -> None:
            slices.now += 0.001
            slices.handled.append(message)
            slices.kernel.tell(other, "other")
            if (number := next(left, None)) is not None:
                slices.kernel.reschedule(self, number)

    actor = Again()
    slices.kernel.spawn(actor)
    slices.kernel.tell_low_priority(actor, "first")
    while slices.kernel.busy:
        slices.turn()
        for _delay, go in slices.breaks:
            go()
    own = ["first", 0, 1, 2, 3, 4]
    assert slices.handled == [one for number in own for one in (number, "other")]
    assert not slices.kernel.busy
    assert busy.handled == 0


def test_those_that_are_put_off_first_come_first() -> None:
    slices = Slices(0.004)
    stranger, known, other = slices.actors[:3]
    slices.kernel.tell_low_priority(stranger, "stranger")
    slices.kernel.tell_low_priority(known, "known", first=True)
    slices.kernel.tell(other, "told")
    slices.turn()
    assert slices.handled == ["told", "known"]


def test_a_break_that_ends_late_makes_the_next_slice_longer() -> None:
    slices = Slices(0.001)
    for number, actor in enumerate(slices.actors[:6]):
        slices.kernel.tell_low_priority(actor, number)
    slices.kernel.tell(slices.actors[9], "told")
    slices.turn()
    assert slices.handled == ["told", 0]
    slices.now += 0.001 + 0.002  # the break, and two milliseconds of others
    slices.kernel.tell(slices.actors[9], "told again")
    slices.breaks[0][1]()
    slices.turn()
    assert slices.handled[2:] == ["told again", 1, 2, 3, 4]


# Turns that are cut, and longer work in parts.


class Cut(Slices):
    """Each message takes a millisecond, and a turn is cut after two of them."""

    def __init__(self) -> None:
        super().__init__(0.001)
        self.kernel.turn_slice = 0.002
        self.ended: list[int] = []
        self.cuts = 0
        self.kernel.turn_ended = lambda: self.ended.append(len(self.handled))
        self.kernel.turn_split = self._cut

    def _cut(self) -> None:
        self.cuts += 1


def test_a_split_turn_continues_before_later_messages() -> None:
    cut = Cut()
    for number, actor in enumerate(cut.actors[:5]):
        cut.kernel.tell(actor, number)
    cut.turn()
    assert (cut.handled, cut.ended, cut.cuts) == ([0, 1], [], 1)
    # To an actor that is still to run in this turn as well: it belongs to the next one.
    cut.kernel.tell(cut.actors[4], "came")
    cut.kernel.tell(cut.actors[0], "came too")
    cut.turn()
    assert (cut.handled, cut.ended, cut.cuts) == ([0, 1, 2, 3], [], 2)
    cut.turn()
    assert (cut.handled, cut.ended) == ([0, 1, 2, 3, 4], [5])
    cut.turn()
    assert cut.handled[5:] == ["came", "came too"]
    assert cut.ended == [5, 7]
    assert not cut.kernel.busy


def test_a_full_mailbox_is_cut_where_it_is_and_nothing_overtakes() -> None:
    cut = Cut()
    first, second = cut.actors[:2]
    for number in range(5):
        cut.kernel.tell(first, number)
    cut.kernel.tell(second, "second")
    while cut.asked:
        cut.turn()
    assert cut.handled == [0, 1, 2, 3, 4, "second"]
    assert cut.ended == [6]


@pytest.mark.parametrize("turn_slice", [0.0, 0.002, 3600.0])
def test_no_other_actor_runs_before_an_actor_that_continues_in_the_same_turn(
    turn_slice: float,
) -> None:
    """It keeps its place, whether the turn is split or not: it must not wait for another one."""
    cut = Cut()
    cut.kernel.turn_slice = turn_slice

    class Continues(LoopActor):
        def on_receive(self, message: Any) -> None:
            cut.now += 0.001
            cut.handled.append(message)
            if message:
                self.kernel.tell(self, message - 1)

    first = Continues()
    cut.kernel.spawn(first)
    cut.kernel.tell(first, 9)
    cut.kernel.tell(cut.actors[0], "other")
    while cut.asked:
        cut.turn()
    assert cut.handled == [*range(9, -1, -1), "other"]
    assert cut.ended == [11]
    assert bool(cut.cuts) == (turn_slice < 1)


def test_messages_for_an_actor_that_stopped_are_returned() -> None:
    cut = Cut()
    actors = [Recorder() for _ in range(2)]
    for actor in actors:
        cut.kernel.spawn(actor)
    cut.kernel.tell(cut.actors[0], 1)
    cut.kernel.tell(cut.actors[1], 2)
    cut.kernel.tell(actors[0], "seen")
    actors[0].stop()
    cut.turn()
    cut.kernel.tell(actors[0], "too late")
    while cut.asked:
        cut.turn()
    assert actors[0].seen == ["seen"]
    assert actors[0].undelivered == ["too late"]


def test_parts_of_longer_work_take_turns_and_let_others_come_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernel_module, "LATER_SLICE", 0.003)
    cut = Cut()
    cut.kernel.turn_slice = 1.0
    one, two, light = cut.actors[:3]
    for number in range(4):
        cut.kernel.later(one, f"one {number}")
        cut.kernel.later(two, f"two {number}")
    cut.kernel.light_at = cut.now
    cut.kernel.tell(light, "light")
    cut.turn()
    # What is ready goes first, and what it sends leaves before any part begins.
    assert cut.handled == ["light"]
    cut.kernel.tell(light, "light again")
    cut.turn()
    # Parts do not starve: each second run has some, for two milliseconds, each a turn of its own.
    assert cut.handled[1:] == ["light again", "one 0", "two 0"]
    cut.kernel.tell(light, "and again")
    cut.turn()
    assert cut.handled[4:] == ["and again"]
    cut.turn()
    assert cut.handled[5:] == ["one 1", "two 1"]
    while cut.asked:
        cut.turn()
    assert cut.handled[7:] == ["one 2", "two 2", "one 3", "two 3"]
    assert cut.kernel.parts == 8
    assert not cut.kernel.busy


def test_a_turn_waits_once_for_callbacks_that_are_due() -> None:
    cut = Cut()
    cut.kernel.tell(cut.actors[0], "told")
    cut.kernel.yield_once()
    cut.turn()
    assert (cut.handled, cut.ended) == ([], [])
    assert len(cut.asked) == 1
    cut.turn()
    assert cut.handled == ["told"]
    assert not cut.asked


def test_parts_share_a_turn_while_no_client_needs_short_turns() -> None:
    cut = Cut()
    cut.kernel.turn_slice = 1.0
    for number, actor in enumerate(cut.actors[:3]):
        cut.kernel.later(actor, number)
    cut.turn()
    assert cut.handled == [0, 1, 2]
    assert cut.ended == [0, 3]  # before the parts and behind them
    assert not cut.asked


def test_longer_work_during_a_split_turn_comes_after_earlier_messages() -> None:
    """It used to run in the same turn, before what its client had sent earlier."""
    cut = Cut()
    for number, actor in enumerate(cut.actors[:3]):
        cut.kernel.tell(actor, number)
    cut.turn()
    cut.kernel.tell(cut.actors[5], "first")
    cut.kernel.later(cut.actors[5], "second")
    while cut.asked:
        cut.turn()
    assert cut.handled == [0, 1, 2, "first", "second"]


def test_an_actor_hears_how_long_its_part_took_while_light_clients_are_about() -> None:
    cut = Cut()
    cut.kernel.turn_slice = 1.0
    heard: list[float] = []

    class Worker(LoopActor):
        def on_receive(self, message: Any) -> None:
            cut.kernel.tell(cut.actors[0], message)
            cut.now += 0.003

        def on_part_done(self, seconds: float) -> None:
            heard.append(round(seconds, 6))

    worker = Worker()
    cut.kernel.spawn(worker)
    cut.kernel.later(worker, "alone")
    cut.turn()
    assert heard == []
    cut.kernel.light_at = cut.now
    cut.now += 10
    cut.kernel.later(worker, "long after others")
    cut.turn()
    assert heard == []
    cut.kernel.light_at = cut.now
    cut.kernel.later(worker, "beside others")
    cut.turn()
    assert heard == [0.004]  # with what it caused
    cut.now += 10
    cut.kernel.later(worker, "alone again")
    cut.turn()
    assert heard == [0.004]


def test_low_priority_messages_run_although_all_parts_are_split() -> None:
    cut = Cut()
    stranger = cut.actors[0]

    class Worker(LoopActor):
        def on_receive(self, message: Any) -> None:
            cut.kernel.later(self, message)
            for actor in cut.actors[1:]:
                cut.kernel.tell(actor, message)

    worker = Worker()
    cut.kernel.spawn(worker)
    cut.kernel.later(worker, "part")
    cut.kernel.tell_low_priority(stranger, "stranger")
    for _ in range(20):
        cut.turn()
    assert "stranger" in cut.handled


def test_messages_in_between_run_although_all_parts_are_split() -> None:
    cut = Cut()
    light = cut.actors[0]

    class Worker(LoopActor):
        def on_receive(self, message: Any) -> None:
            cut.kernel.later(self, message)
            for actor in cut.actors[1:]:
                cut.kernel.tell(actor, message)

    worker = Worker()
    cut.kernel.spawn(worker)
    cut.kernel.later(worker, "part")
    cut.turn()
    cut.kernel.tell(light, "light")
    cut.kernel.tell_low_priority(light, "light too")
    for _ in range(20):
        cut.turn()
    assert cut.handled.count("light") == cut.handled.count("light too") == 1


def test_low_priority_messages_run_although_every_turn_is_split() -> None:
    cut = Cut()
    stranger, worker, *busy = cut.actors
    cut.kernel.tell_low_priority(stranger, "stranger")
    cut.kernel.later(worker, "part")
    for number, actor in enumerate(busy):
        cut.kernel.tell(actor, number)
    for _ in range(20):  # more than there is time for, again and again
        cut.turn()
        for actor in busy:
            cut.kernel.tell(actor, "more")
    assert "stranger" in cut.handled
    assert "part" in cut.handled


def test_an_actor_that_begins_turns_waits_for_the_next_one() -> None:
    cut = Cut()
    told, *others = cut.actors[:4]

    class Socket(LoopActor):
        begins_turns = True

        def on_receive(self, message: Any) -> None:
            cut.now += 0.001
            cut.handled.append(message)
            cut.kernel.tell(told, f"by {message}")

    sockets = [Socket() for _ in range(4)]
    for number, socket in enumerate(sockets):
        cut.kernel.spawn(socket)
        cut.kernel.tell(socket, number)
    while cut.asked:
        cut.turn()
    # Two have their turn, with all that follows from it; then the others have theirs.
    assert cut.handled == [0, 1, "by 0", "by 1", 2, 3, "by 2", "by 3"]
    assert cut.ended == [4, 8]
    assert not others[0].handled


def test_a_part_for_a_stopped_actor_is_dropped() -> None:
    cut = Cut()
    actor = Recorder()
    cut.kernel.spawn(actor)
    cut.kernel.later(actor, "part")
    cut.kernel.stop_now(actor)
    while cut.asked:
        cut.turn()
    assert actor.seen == []
    assert not cut.kernel.busy


def test_waiting_messages_go_to_an_actor_before_another_stops_it() -> None:
    cut = Cut()

    class Stopped(Recorder):
        dead: ClassVar[list[Any]] = []

        def on_dead_letters(self, messages: list[Any]) -> None:
            self.dead.extend(messages)

    class Stopping(LoopActor):
        def on_receive(self, _message: Any) -> None:
            cut.kernel.tell(actor, "late")
            cut.kernel.stop_other(actor)
            cut.handled.append(list(Stopped.dead))
            cut.kernel.stop_other(actor)  # which changes nothing

    actor, other = Stopped(), Stopping()
    for one in (actor, other):
        cut.kernel.spawn(one)
    cut.kernel.tell(other, "stop it")
    cut.kernel.tell(actor, "early")
    while cut.asked:
        cut.turn()
    assert cut.handled == [["early", "late"]]
    assert actor.seen == []
    assert actor.stopped


def test_after_a_long_run_the_break_is_bounded_also_if_nothing_is_left() -> None:
    slices = Slices(0.4)
    slices.kernel.tell_low_priority(slices.actors[0], 1)
    slices.kernel.tell(slices.actors[1], 2)
    slices.turn()
    slices.kernel.tell(slices.actors[1], 3)
    slices.kernel.tell_low_priority(slices.actors[0], 4)
    slices.turn()
    assert [delay for delay, _ in slices.breaks] == []  # 0.4 s ago is no work of now
    quick = Slices(0.004)
    quick.kernel.tell_low_priority(quick.actors[0], 1)
    quick.kernel.tell(quick.actors[1], 2)
    quick.turn()
    assert [delay for delay, _ in quick.breaks] == [pytest.approx(0.004)]
    quick.kernel.tell_low_priority(quick.actors[0], 3)
    quick.turn()
    assert quick.handled == [2, 1]
    quick.breaks[0][1]()
    quick.turn()
    assert quick.handled == [2, 1, 3]


def test_the_longest_turn_is_measured_in_time_and_in_processor_time() -> None:
    """What the host gave to others during a turn is no work of the broker."""
    now, work = [0.0], [0.0]
    asked: list[Callable[[], None]] = []
    kernel = Kernel(asked.append, clock=lambda: now[0], processor=lambda: work[0])
    actor = Recorder()
    kernel.spawn(actor)

    def run(seconds: float, busy: float) -> None:
        def passes(_actor: LoopActor) -> None:
            now[0] += seconds
            work[0] += busy

        kernel.tell(actor, passes)
        while asked:
            asked.pop(0)()

    run(0.030, 0.004)
    assert (kernel.longest, kernel.longest_work) == pytest.approx((0.030, 0.004))
    run(0.012, 0.012)
    assert (kernel.longest, kernel.longest_work) == pytest.approx((0.030, 0.012))


class Reader(Recorder):
    """Counts its deferred reads as a connection does."""

    deferred = 0

    def on_read_deferred(self) -> None:
        self.deferred += 1

    def on_read_resumed(self) -> None:
        self.deferred -= 1
        assert self.deferred >= 0


def take_some(seen: list[tuple[str, bytes]], most: int) -> Callable[[Any], int]:
    """Return a pass over gathered reads that handles ``most`` of them."""

    def take(reads: list[tuple[Any, bytes]]) -> int:
        some = reads[:most]
        seen.extend((actor.name, data) for actor, data in some)
        return len(some)

    return take


def test_reads_beyond_a_turn_are_handled_before_those_that_come_later(loop: Loop) -> None:
    kernel, seen = loop.kernel, list[tuple[str, bytes]]()
    kernel.handle_gathered = take_some(seen, 2)
    readers = [Reader(name=name) for name in "abcd"]
    for reader in readers:
        kernel.spawn(reader)
    for reader in readers:
        kernel.gather(reader, b"1")
    loop.asked.pop(0)()
    assert [reader.deferred for reader in readers] == [0, 0, 1, 1]
    # The two that were served send again, as clients with a window of one do.
    kernel.gather(readers[0], b"2")
    kernel.gather(readers[1], b"2")
    assert loop.run() == 2
    assert seen == [("a", b"1"), ("b", b"1"), ("c", b"1"), ("d", b"1"), ("a", b"2"), ("b", b"2")]
    assert not any(reader.deferred for reader in readers)


def test_a_read_in_the_queue_of_longer_work_follows_one_that_was_left(loop: Loop) -> None:
    kernel, seen = loop.kernel, list[tuple[str, bytes]]()
    kernel.handle_gathered = take_some(seen, 1)
    first, second = Reader(name="a"), Reader(seen, name="b")
    for reader in (first, second):
        kernel.spawn(reader)
        kernel.gather(reader, b"1")
    second.on_read_deferred()
    kernel.later(second, DeferredRead(b"2"))
    kernel.tell(second, "told")  # its mailbox is not empty
    loop.run()
    assert [data for name, data in seen if name == "b" and data != "told"] == [b"1", b"2"]
    assert not second.deferred


def test_a_read_that_is_left_does_not_overtake_the_rest_of_an_earlier_one() -> None:
    """Although the turn is split before the actor has handled that rest."""
    now, asked = [0.0], list[Callable[[], None]]()
    kernel = Kernel(asked.append, clock=lambda: now[0])
    seen: list[tuple[str, Any]] = []

    class Client(Reader):
        begins_turns = True

    def take_a_while(_actor: LoopActor) -> None:
        now[0] += 1.0

    client, other = Client(seen, name="client"), Recorder(name="other")
    for actor in (client, other):
        kernel.spawn(actor)

    def take(reads: list[tuple[Any, bytes]]) -> int:
        if len(reads) == 2:
            kernel.tell(other, take_a_while)
            kernel.tell_first(client, b"rest of 1")
            return 1
        seen.extend((actor.name, data) for actor, data in reads)
        return len(reads)

    kernel.handle_gathered = take
    kernel.gather(client, b"1")
    kernel.gather(client, b"2")
    while asked:
        asked.pop(0)()
    assert seen == [("client", b"rest of 1"), ("client", b"2")]
    assert not client.deferred


def test_parts_of_longer_work_come_between_reads_that_are_left(loop: Loop) -> None:
    kernel, seen = loop.kernel, list[Any]()
    kernel.handle_gathered = take_some(seen, 1)
    works, others = Recorder(seen, "works"), [Reader(name=name) for name in "abc"]
    kernel.spawn(works)
    for reader in others:
        kernel.spawn(reader)
        kernel.gather(reader, b"1")
    kernel.later(works, lambda actor: seen.append("part"))
    loop.run()
    assert seen == [("a", b"1"), "part", ("b", b"1"), ("c", b"1")]


class Timer:
    """A timer that is run by hand."""

    def __init__(self, timers: list["Timer"], due: float, call: Callable[[], None]) -> None:
        self.timers, self.due, self.call = timers, due, call
        timers.append(self)

    def cancel(self) -> None:
        self.timers.remove(self)


class Patience:
    """A kernel with such timers."""

    def __init__(self) -> None:
        self.now = 0.0
        self.turns: list[Callable[[], None]] = []
        self.timers: list[Timer] = []
        self.kernel = Kernel(
            self.turns.append,
            lambda: self.now,
            lambda seconds, call: Timer(self.timers, self.now + seconds, call),
        )

    def run(self) -> None:
        """Run the turns that are asked for."""
        while self.turns:
            self.turns.pop(0)()

    def go(self, until: float) -> None:
        """Let time pass."""
        self.now = until
        for timer in [timer for timer in self.timers if timer.due <= until]:
            timer.cancel()
            timer.call()
        self.run()


def test_a_message_that_may_wait_shares_the_next_turn() -> None:
    patience, order = Patience(), list[Any]()
    kernel = patience.kernel
    waiting, other = Recorder(order, "waiting"), Recorder(order, "other")
    for actor in (waiting, other):
        kernel.spawn(actor)
    patience.run()
    kernel.tell_waiting(waiting, 1, 0.003)
    assert kernel.busy
    patience.run()
    assert not order
    kernel.tell(other, 2)
    patience.run()
    assert order == [("waiting", 1), ("other", 2)]
    assert not patience.timers, "one would wake the event loop for nothing"
    patience.go(1.0)
    kernel.tell_waiting(waiting, 3, 0.003)
    kernel.tell_waiting(waiting, 4, 0.003)
    patience.run()
    assert order[2:] == []
    patience.go(1.003)
    assert order[2:] == [("waiting", 3), ("waiting", 4)]
    kernel.tell_waiting(waiting, 5, 0.0)
    patience.run()
    assert order[4:] == [("waiting", 5)]
    assert not kernel.busy


def test_the_earliest_of_what_waits_decides_when_a_turn_begins() -> None:
    patience, order = Patience(), list[Any]()
    kernel = patience.kernel
    actors = [Recorder(order, name) for name in "abc"]
    for actor in actors:
        kernel.spawn(actor)
    patience.run()
    kernel.gather_waiting(actors[0], b"0", 0.01)
    kernel.gather_waiting(actors[1], b"1", 0.003)
    kernel.tell_waiting(actors[2], 2, 0.005)
    assert [timer.due for timer in patience.timers] == [0.003]
    patience.go(0.0015)
    assert not order
    patience.go(0.003)
    assert sorted(order) == [("a", b"0"), ("b", b"1"), ("c", 2)]
    assert not patience.timers
