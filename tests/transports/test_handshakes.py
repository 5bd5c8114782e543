"""The threads of TLS: their number, their order, refusals, and the names of errors."""

import asyncio
import ssl
import threading
from typing import Any, cast

import pytest
from harness.waiting import happens

from actors.transports import handshakes
from actors.transports.handshakes import Handshakes, Step, classify, take_step


class Slow:
    """A handshake whose step lasts until it is let go."""

    def __init__(self, outcome: Exception | None = None) -> None:
        self.begun = False
        self.go = threading.Event()
        self._outcome = outcome

    def do_handshake(self) -> None:
        self.begun = True
        assert self.go.wait(10)
        if self._outcome is not None:
            raise self._outcome


class Queue:
    """Handshakes and what became of them, in order."""

    def __init__(self, handshakes: Handshakes) -> None:
        self.handshakes = handshakes
        self.done: list[tuple[str, Step]] = []

    def add(self, name: str, tls: Slow, *, new: bool = True, wanted: bool = True) -> bool:
        return self.handshakes.step(
            cast("ssl.SSLObject", tls),
            lambda step: self.done.append((name, step)),
            lambda: wanted,
            new=new,
        )

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.done]


async def test_only_so_many_work_and_those_begun_go_first() -> None:
    queue = Queue(Handshakes(threads=1))
    jobs = {name: Slow() for name in ("first", "new", "begun", "left")}
    assert queue.add("first", jobs["first"])
    assert queue.add("left", jobs["left"], wanted=False)
    assert queue.add("new", jobs["new"])
    assert queue.add("begun", jobs["begun"], new=False)
    await happens(lambda: jobs["first"].begun, "work")
    assert not any(jobs[name].begun for name in ("new", "begun"))
    for job in jobs.values():
        job.go.set()
    await happens(lambda: len(queue.done) == 3, "the end")
    assert queue.names == ["first", "begun", "new"]
    assert all(step.done and step.error is None for _, step in queue.done)
    assert not jobs["left"].begun
    queue.handshakes.close()


async def test_only_so_many_new_ones_wait() -> None:
    queue = Queue(Handshakes(threads=1, waiting=2))
    jobs = [Slow() for _ in range(5)]
    assert queue.add("working", jobs[0])
    await happens(lambda: jobs[0].begun, "work")
    assert queue.add("1", jobs[1])
    assert queue.add("2", jobs[2])
    assert queue.handshakes.waiting == 2
    assert not queue.add("too many", jobs[3])
    assert queue.add("begun", jobs[4], new=False), "who has begun is not turned away"
    for job in jobs:
        job.go.set()
    await happens(lambda: len(queue.done) == 4, "the end")
    assert queue.handshakes.waiting == 0
    queue.handshakes.close()


@pytest.mark.parametrize("why", ["late", "others at work"])
async def test_a_busy_loop_gets_breaks_between_new_ones(
    monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    # As if the loop came late to every step, or never.
    monkeypatch.setattr(handshakes, "_LATE", -1.0 if why == "late" else 3600.0)
    monkeypatch.setattr(handshakes, "_BREAK_SECONDS", 3600.0)
    queue = Queue(Handshakes(threads=1))
    queue.handshakes.busy_recently = lambda: why != "late"
    jobs = {name: Slow() for name in ("first", "second", "begun", "third")}
    for name, job in jobs.items():
        job.go.set()
        queue.add(name, job, new=name != "begun")
    # The second one was queued, and not begun, when the first one was done.
    await happens(lambda: queue.names == ["first", "begun"], "those that are due")
    await asyncio.sleep(0.02)
    assert queue.handshakes.waiting == 2
    queue.handshakes._end_break()
    await happens(lambda: queue.names == ["first", "begun", "second"], "one after the break")
    assert queue.handshakes.waiting == 1
    queue.handshakes.close()
    assert queue.names[-1] == "third"


async def test_the_loop_is_free_while_they_work() -> None:
    queue = Queue(Handshakes(threads=2))
    jobs = [Slow() for _ in range(2)]
    for job in jobs:
        queue.add("job", job)
    await happens(lambda: all(job.begun for job in jobs), "both at once")
    turns = 0
    for _ in range(100):
        await asyncio.sleep(0)
        turns += 1
    assert turns == 100
    assert not queue.done
    for job in jobs:
        job.go.set()
    await happens(lambda: len(queue.done) == 2, "the end")
    queue.handshakes.close()


async def test_those_that_wait_fail_at_the_end() -> None:
    queue = Queue(Handshakes(threads=1))
    jobs = [Slow(), Slow()]
    queue.add("working", jobs[0])
    await happens(lambda: jobs[0].begun, "work")
    queue.add("waiting", jobs[1])
    queue.handshakes.close()
    ((name, step),) = queue.done
    assert name == "waiting"
    assert step.error is not None
    assert not queue.add("late", jobs[1])
    jobs[0].go.set()
    await happens(lambda: len(queue.done) == 2, "the one at work is told as well")


def ssl_error(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, reason)
    error.reason = reason
    return error


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("PEER_DID_NOT_RETURN_A_CERTIFICATE", "no_certificate"),
        ("UNSUPPORTED_PROTOCOL", "version"),
        ("NO_SHARED_CIPHER", "cipher"),
        ("HTTP_REQUEST", "plaintext"),
        ("TLSV1_ALERT_UNKNOWN_CA", "client_refused"),
        ("SSLV3_ALERT_CERTIFICATE_UNKNOWN", "client_refused"),
        ("SOMETHING_NEW", "other"),
    ],
)
def test_errors_have_a_kind(reason: str, kind: str) -> None:
    error = classify(ssl_error(reason))
    assert error.kind == kind
    assert str(error).isprintable()


@pytest.mark.parametrize(
    ("outcome", "done", "kind"),
    [
        (None, True, None),
        (ssl.SSLWantReadError(), False, None),
        (ssl_error("NO_SHARED_CIPHER"), False, "cipher"),
        (OSError(5, "odd"), False, "other"),
    ],
)
def test_a_step_never_raises(outcome: Exception | None, done: bool, kind: str | None) -> None:
    slow = Slow(outcome)
    slow.go.set()
    step = take_step(cast("Any", slow))
    assert step.done is done
    assert (step.error.kind if step.error else None) == kind
