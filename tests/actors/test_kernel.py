"""The kernel: pykka's actors on an event loop."""

import asyncio
from collections.abc import Callable
from typing import Any

import pykka
import pytest
from kernels import Loop, Recorder

from actors.kernel.actor import LoopActor, describe
from actors.kernel.references import ActorFailed


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
    first, second = loop.spawn(Recorder()), loop.spawn(Recorder())
    loop.kernel.turn_ended = lambda: ended.append(len(first.seen) + len(second.seen))

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
    receiver = loop.spawn(Recorder(journal, "r"))

    def send(start: int) -> Callable[[Recorder], None]:
        def handle(_actor: Recorder) -> None:
            for number in range(start, start + 3):
                loop.kernel.tell(receiver, number)

        return handle

    senders = [loop.spawn(Recorder()) for _ in range(2)]
    for at, sender in enumerate(senders):
        loop.kernel.tell(sender, send(10 * at))
    loop.kernel.tell(senders[0], send(100))
    loop.run()
    seen = receiver.seen
    assert sorted(seen) == [0, 1, 2, 10, 11, 12, 100, 101, 102]
    assert [number for number in seen if number not in (10, 11, 12)] == [0, 1, 2, 100, 101, 102]


def test_messages_to_itself_come_after_waiting_ones(loop: Loop) -> None:
    actor = loop.spawn(Recorder())
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
    actor = loop.spawn(Recorder())
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
    actor = loop.spawn(Recorder())
    loop.kernel.tell(actor, lambda me: me.stop())
    loop.kernel.tell(actor, "still seen")
    loop.run()
    assert (actor.seen, actor.life) == (["still seen"], ["start", "stop"])


def test_stopping_twice_stops_once(loop: Loop) -> None:
    actor = loop.spawn(Recorder())
    actor.stop()
    actor.stop()
    loop.run()
    assert (actor.life, actor.undelivered) == (["start", "stop"], [])


def test_a_failing_on_undelivered_does_not_stop_the_kernel(loop: Loop) -> None:
    class Bad(Recorder):
        def on_dead_letters(self, messages: list[Any]) -> None:
            raise ValueError("not now")

    (parent, bad), other = loop.family(Bad()), loop.spawn(Recorder())
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
    parent, child, sibling = loop.family(Recorder(), Recorder())
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
    (parent, child), friend = loop.family(Recorder()), loop.spawn(Recorder())

    def tell_and_fail(actor: LoopActor) -> None:
        loop.kernel.tell(friend, "before")
        loop.kernel.tell(actor, "to myself")
        raise ValueError("boom")

    loop.kernel.tell(child, tell_and_fail)
    loop.run()
    assert friend.seen == ["before"]
    assert parent.seen[0].unseen == ["to myself"]


def test_a_failure_without_a_parent_is_contained(loop: Loop) -> None:
    alone, other = loop.spawn(Recorder()), loop.spawn(Recorder())
    loop.kernel.tell(alone, fail)
    loop.kernel.tell(other, 1)
    loop.run()
    assert (alone.stopped, other.seen) == (True, [1])


def test_a_failure_without_a_parent_goes_to_its_replacement(loop: Loop) -> None:
    parent, child = loop.family(Recorder())
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

    parent, bad = loop.family(Bad())
    loop.run()
    assert not bad.actor_ref.is_alive()
    assert len(loop.kernel) == 1
    assert (parent.seen[0].message, parent.seen[0].unseen) == (None, ["first"])


def test_a_failure_in_on_stop_still_stops(loop: Loop) -> None:
    class Bad(Recorder):
        def on_stop(self) -> None:
            raise ValueError("boom")

    parent, bad = loop.family(Bad())
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

    parent, bad = loop.family(Bad())
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
        parent, actor = loop.family(Recorder())
        ref = actor.actor_ref
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
    parent = loop.spawn(Recorder())
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
