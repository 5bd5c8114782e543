"""``foldmq actors tail`` at a real broker with real clients."""

import asyncio
import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from harness import forkserver
from harness import packets as p
from harness.broker import Broker, environment
from harness.fixtures import Clients
from harness.waiting import until

from cli.logs.broker_search import open_brokers
from cli.logs.source_flags import SourceFlags
from e2e.tools import HOSTILE_ID, HOSTILE_PAYLOAD, HOSTILE_TOPIC, refused, run

Line = dict[str, Any]


class Tail:
    """A tail that runs; its lines are gathered as they come."""

    def __init__(self, broker: Broker, *arguments: str) -> None:
        self.out: list[str] = []
        self.err: list[str] = []
        (out, to_out), (err, to_err) = os.pipe(), os.pipe()
        command = ["actors", "tail", *arguments, "--data-dir", str(broker.data_dir)]
        self._process = forkserver.start(command, environment(), to_out, to_err)
        os.close(to_out)
        os.close(to_err)
        self._readers = [
            threading.Thread(target=self._read, args=pair, daemon=True)
            for pair in ((out, self.out), (err, self.err))
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, descriptor: int, lines: list[str]) -> None:
        with open(descriptor, encoding="utf-8") as stream:
            for line in stream:
                lines.append(line.rstrip("\n"))  # noqa: PERF401 - others look at it meanwhile

    def __enter__(self) -> Self:
        until(lambda: self.err, "the tail says that it traces")
        assert self.err[0].startswith("foldmq: tracing "), self.err
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self.ended()

    def interrupt(self) -> int:
        self._process.send_signal(signal.SIGINT)
        return self.ended()

    def ended(self) -> int:
        """The exit code; nothing was printed that could break out of its line."""
        code = self._process.wait(30)
        for reader in self._readers:
            reader.join()
        assert all(line.isprintable() for line in (*self.out, *self.err))
        assert not any("Traceback" in line for line in self.err), self.err
        return code

    @property
    def objects(self) -> list[Line]:
        return [json.loads(line) for line in self.out]

    def wait(self, **wanted: object) -> Line:
        """The first line with these fields."""

        def found() -> list[Line]:
            return [
                line
                for line in self.objects
                if all(line.get(key) == value for key, value in wanted.items())
            ]

        until(found, f"a line with {wanted}")
        return found()[0]


@pytest.fixture
def quiet(tmp_path: Path) -> Iterator[Broker]:
    """A broker of its own, so that its log and its traces are known."""
    limits = ("--max-topic-levels", "100")
    with Broker(tmp_path, args=["--metrics", "off", "--web", "off", *limits], forked=True) as made:
        yield made


@pytest.fixture
def own(quiet: Broker) -> Iterator[Clients]:
    made = Clients("127.0.0.1", quiet.port)
    yield made
    made.close()


def in_log(broker: Broker, session: str) -> dict[str, str]:
    """The events of a session by position."""
    ran = run("log", "--json", "--session", session, "--data-dir", str(broker.data_dir))
    return {one["position"]: one["type"] for one in ran.objects}


def test_a_client_is_traced_from_before_it_connects_and_through_a_reconnect(
    quiet: Broker, own: Clients
) -> None:
    with Tail(quiet, "--client", "lock", "--json") as tail:
        assert tail.err == ["foldmq: tracing client lock, which is not known yet: waiting for it"]
        lock = own.connect("lock", clean=False, keepalive=60)
        lock.subscribe(("hall/#", 1))
        panel = own.connect("panel")
        panel.publish("hall/door", b"open!", 1)
        lock.acknowledge(lock.expect_publish("hall/door", b"open!", 1))
        lock.publish("state/lock", b"ok", 1)
        tail.wait(kind="event", what="Acked")
        lock.close()
        tail.wait(kind="event", what="SessionClosed")
        panel.publish("hall/door", b"again", 1)
        again = own.connect("lock", clean=False, session_present=True)
        again.acknowledge(again.expect_publish("hall/door", b"again", 1))
        again.publish("state/lock", b"back", 1)
        until(lambda: len(told(tail, "PUBACK", "packet_out")) == 2, "the second PUBACK")
        connects = told(tail, "CONNECT", "packet_in")
        assert [one["packet"]["keep_alive"] for one in connects] == [60, 0]
        assert len({one["actor"] for one in connects}) == 2
        (subscribe,) = told(tail, "SUBSCRIBE", "packet_in")
        assert subscribe["packet"]["filters"] == [["hall/#", 1]]
        assert len(told(tail, "PUBLISH", "packet_out")) == 2
        assert len(told(tail, "PUBACK", "packet_in")) == 2
        publish, _ = told(tail, "PUBLISH", "packet_in")
        assert (publish["packet"]["topic"], publish["client"]) == ("state/lock", "lock")
        shown = {one["position"]: one["what"] for one in tail.objects if one["kind"] == "event"}
        own.close()
        until(lambda: "SessionClosed" in list(in_log(quiet, "lock").values())[-1:], "the end")
        logged = in_log(quiet, "lock")
        assert shown.items() <= logged.items()
        # Nothing is missing but what came after we looked.
        assert list(logged.values())[: len(shown)] == list(shown.values())
        assert tail.interrupt() == 130


def told(tail: Tail, what: str, kind: str) -> list[Line]:
    return [one for one in tail.objects if (one["kind"], one["what"]) == (kind, what)]


def test_so_many_lines_and_no_more(quiet: Broker, own: Clients) -> None:
    panel = own.connect("panel")
    with Tail(quiet, "--topic", "#", "-n", "5") as tail:
        panel.send(*(p.publish("a", b"x", 1, n) for n in range(1, 101)))
        assert tail.ended() == 0
        assert len(tail.out) == 5


async def ask_for_traces(broker: Broker, number: int) -> None:
    flags = SourceFlags({"data_dir": str(broker.data_dir)})
    async with open_brokers(flags) as brokers:
        live = brokers.only("a trace is")
        for one in range(number):
            await live.ask("trace", token=f"{one:022}", client="x")


def test_interrupting_a_tail_ends_its_trace(quiet: Broker, own: Clients) -> None:
    panel = own.connect("panel")
    data = str(quiet.data_dir)
    asyncio.run(ask_for_traces(quiet, 7))
    with Tail(quiet, "--topic", "#") as tail:
        said = refused("actors", "tail", "--topic", "#", "--data-dir", data, code=1)
        assert said == "8 traces are already running: no more are allowed"
        assert tail.interrupt() == 130
        assert len(tail.err) == 1
    with Tail(quiet, "--topic", "#", "-n", "1") as tail:
        panel.publish("a", b"x", 1)
        assert tail.ended() == 0


@pytest.mark.parametrize("how", ["stop", "kill_all"])
def test_a_tail_ends_with_the_broker(quiet: Broker, how: str) -> None:
    with Tail(quiet, "--client", "lock") as tail:
        getattr(quiet, how)()
        assert tail.ended() == 69
        assert tail.err[-1].startswith("foldmq: the broker of node ")


def test_hostile_names_are_escaped(quiet: Broker, own: Clients) -> None:
    ways = (("--client", HOSTILE_ID), ("--topic", "#"))
    tails = [Tail(quiet, *way, *look) for way in ways for look in ((), ("--json",))]
    try:
        for tail in tails:
            tail.__enter__()
        evil = own.connect(HOSTILE_ID, will=p.Will(HOSTILE_TOPIC, HOSTILE_PAYLOAD, 1))
        evil.subscribe((HOSTILE_TOPIC, 1))
        evil.publish(HOSTILE_TOPIC, HOSTILE_PAYLOAD, 0)
        evil.send(p.publish(HOSTILE_TOPIC, HOSTILE_PAYLOAD, 1, 9))
        # A reset throws away what the broker has not read yet.
        while evil.receive() != p.Puback(9):
            pass
        evil.reset()
        for tail in tails:
            until(lambda tail=tail: len(tail.out) >= 5, "lines")
            until(lambda tail=tail: any("evil" in line for line in tail.out), "the name")
    finally:
        for tail in tails:
            tail.__exit__()


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        ([], 2, "give exactly one of ID, --client and --topic"),
        (["session:1", "--client", "x"], 2, "give exactly one of ID, --client and --topic"),
        (["lock"], 2, "not an actor ID: lock; use --client for a client"),
        (["session:99999"], 1, "there is no actor 'session:99999'"),
        (["--topic", "a/#/b"], 2, "topic \"a/#/b\": '#' is not a whole level"),
    ],
)
def test_invalid_targets_are_refused(
    broker: Broker, arguments: list[str], code: int, why: str
) -> None:
    said = refused("actors", "tail", *arguments, "--data-dir", str(broker.data_dir), code=code)
    assert said.startswith(why)
