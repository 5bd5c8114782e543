"""Turns of the kernel: what is put off, turns that are split, longer work in parts, reads."""

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from kernels import Cut, Loop, Recorder, Slices

from actors.kernel import kernel as kernel_module
from actors.kernel.actor import DeferredRead, LoopActor


@pytest.fixture
def loop() -> Loop:
    return Loop()


def test_low_priority_messages_come_after_all_others(loop: Loop) -> None:
    seen: list[Any] = []
    late, busy = (loop.spawn(Recorder(seen, name)) for name in ("late", "busy"))
    loop.kernel.tell_low_priority(late, 1)
    loop.kernel.tell(busy, lambda _actor: loop.kernel.tell(busy, "more"))
    loop.run()
    assert [entry[0] for entry in seen if entry[0] in {"late", "busy"}][-1] == "late"
    assert [message for name, message in map(tuple, seen[-2:])] == ["more", 1]


def test_messages_to_a_low_priority_actor_stay_in_order(loop: Loop) -> None:
    seen: list[Any] = []
    actor = loop.spawn(Recorder(seen, "a"))
    loop.kernel.tell_low_priority(actor, 1)
    loop.kernel.tell(actor, 2)
    loop.kernel.tell_low_priority(actor, 3)
    loop.run()
    assert [entry[1] for entry in seen] == [1, 2, 3]


def test_a_turn_runs_a_slice_of_low_priority_messages() -> None:
    slices = Slices()
    for number, actor in enumerate(slices.actors):
        slices.kernel.tell_low_priority(actor, number)
    for handled in (4, 8, 10):
        assert slices.kernel.busy
        slices.turn()
        assert slices.handled == list(range(handled))
    assert not slices.kernel.busy
    assert slices.breaks == []  # no other actor is at work


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

    actor = slices.spawn(Again())
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
    cut.run()
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

    first = cut.spawn(Continues())
    cut.kernel.tell(first, 9)
    cut.kernel.tell(cut.actors[0], "other")
    cut.run()
    assert cut.handled == [*range(9, -1, -1), "other"]
    assert cut.ended == [11]
    assert bool(cut.cuts) == (turn_slice < 1)


def test_messages_for_an_actor_that_stopped_are_returned() -> None:
    cut = Cut()
    actor = cut.spawn(Recorder())
    cut.kernel.tell(cut.actors[0], 1)
    cut.kernel.tell(cut.actors[1], 2)
    cut.kernel.tell(actor, "seen")
    actor.stop()
    cut.turn()
    cut.kernel.tell(actor, "too late")
    cut.run()
    assert (actor.seen, actor.undelivered) == (["seen"], ["too late"])


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
    cut.run()
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
    cut.run()
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

    worker = cut.spawn(Worker())
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


def test_messages_in_between_run_although_all_parts_are_split() -> None:
    cut = Cut()
    light = cut.actors[0]

    class Worker(LoopActor):
        def on_receive(self, message: Any) -> None:
            cut.kernel.later(self, message)
            for actor in cut.actors[1:]:
                cut.kernel.tell(actor, message)

    worker = cut.spawn(Worker())
    cut.kernel.later(worker, "part")
    cut.kernel.tell_low_priority(light, "from the first")
    cut.turn()
    cut.kernel.tell(light, "light")
    cut.kernel.tell_low_priority(light, "light too")
    for _ in range(20):
        cut.turn()
    for message in ("light", "light too", "from the first"):
        assert cut.handled.count(message) == 1


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

    for number in range(4):
        cut.kernel.tell(cut.spawn(Socket()), number)
    cut.run()
    # Two have their turn, with all that follows from it; then the others have theirs.
    assert cut.handled == [0, 1, "by 0", "by 1", 2, 3, "by 2", "by 3"]
    assert cut.ended == [4, 8]
    assert not others[0].handled


def test_a_part_for_a_stopped_actor_is_dropped() -> None:
    cut = Cut()
    actor = cut.spawn(Recorder())
    cut.kernel.later(actor, "part")
    cut.kernel.stop_now(actor)
    cut.run()
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

    actor, other = cut.spawn(Stopped()), cut.spawn(Stopping())
    cut.kernel.tell(other, "stop it")
    cut.kernel.tell(actor, "early")
    cut.run()
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
    loop = Loop(clock=lambda: now[0], processor=lambda: work[0])
    kernel, actor = loop.kernel, loop.spawn(Recorder())

    def run(seconds: float, busy: float) -> None:
        def passes(_actor: LoopActor) -> None:
            now[0] += seconds
            work[0] += busy

        kernel.tell(actor, passes)
        loop.run()

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
    readers = [loop.spawn(Reader(name=name)) for name in "abcd"]
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
    now = [0.0]
    loop = Loop(clock=lambda: now[0])
    kernel = loop.kernel
    seen: list[tuple[str, Any]] = []

    class Client(Reader):
        begins_turns = True

    def take_a_while(_actor: LoopActor) -> None:
        now[0] += 1.0

    client, other = loop.spawn(Client(seen, name="client")), loop.spawn(Recorder(name="other"))

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
    loop.run()
    assert seen == [("client", b"rest of 1"), ("client", b"2")]
    assert not client.deferred


def test_parts_of_longer_work_come_between_reads_that_are_left(loop: Loop) -> None:
    kernel, seen = loop.kernel, list[Any]()
    kernel.handle_gathered = take_some(seen, 1)
    works = loop.spawn(Recorder(seen, "works"))
    for name in "abc":
        kernel.gather(loop.spawn(Reader(name=name)), b"1")
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


class Patience(Loop):
    """A kernel with such timers."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[Timer] = []
        super().__init__(
            clock=lambda: self.now,
            delay=lambda seconds, call: Timer(self.timers, self.now + seconds, call),
        )

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
    waiting, other = (patience.spawn(Recorder(order, name)) for name in ("waiting", "other"))
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
    actors = [patience.spawn(Recorder(order, name)) for name in "abc"]
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
