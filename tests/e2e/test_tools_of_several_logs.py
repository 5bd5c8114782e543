"""The log tools about a broker with two processes: without --node they read both logs."""

import contextlib
import shutil
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from harness.broker import Broker
from harness.brokerprocesses import TWO, client_of
from harness.fixtures import Clients
from harness.rawclient import RawClient
from harness.waiting import until

from e2e.tools import refused, run

HERE, THERE = client_of(0, "reader"), client_of(1, "reader")
SENDER = client_of(1, "sender")
BOTH = "hall/door"


class Played(NamedTuple):
    """A broker, and a moment between two messages."""

    broker: Broker
    moment: str

    @property
    def data(self) -> tuple[str, str]:
        return ("--data-dir", str(self.broker.data_dir))

    @property
    def logs(self) -> list[str]:
        node = (self.broker.data_dir / "node").read_text().strip()
        return [f"{node}-p0", f"{node}-p1"]


def play(clients: Clients) -> str:
    """Messages from a client of one log to clients of both; returns a moment between them."""
    readers = [clients.connect(name, clean=False) for name in (HERE, THERE)]
    for reader in readers:
        reader.subscribe(("hall/+", 1))
    sender = clients.connect(SENDER, clean=False)
    sender.publish(BOTH, b"open", 1, retain=True)
    receive(readers, b"open")
    moment = datetime.now().astimezone()
    until(lambda: (datetime.now().astimezone() - moment).total_seconds() > 0.002)
    sender.publish(BOTH, b"closed", 1, retain=True)
    receive(readers, b"closed")
    readers[0].disconnect()
    sender.publish("hall/lamp", b"on", 1)
    receive(readers[1:], b"on")
    return moment.isoformat(timespec="milliseconds")


def receive(readers: list[RawClient], payload: bytes) -> None:
    for reader in readers:
        found = reader.receive(20)
        assert getattr(found, "payload", None) == payload, found
        reader.acknowledge(found)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    broker = Broker(tmp_path_factory.mktemp("tools"), args=TWO, forked=True)
    broker.start()
    try:
        with contextlib.closing(Clients("127.0.0.1", broker.port)) as clients:
            found = Played(broker, play(clients))
            queued = '"queued":1,"queued_bytes":2'
            # The other log takes the last message a moment later.
            until(lambda: queued in run("replay", "--session", HERE, "--json", *found.data).out)
        yield found
    finally:
        broker.clean_up()
        print(broker.log[-4000:])  # shown if the test failed


@pytest.fixture
def live(played: Played) -> Played:
    if not played.broker.running:
        played.broker.start()
    return played


@pytest.fixture
def stored(played: Played, tmp_path: Path) -> Iterator[Broker]:
    """A copy of the data of the broker, which is stopped for that."""
    if played.broker.running:
        played.broker.stop()
    broker = Broker(tmp_path, args=TWO, forked=True)
    shutil.copytree(played.broker.data_dir, broker.data_dir, dirs_exist_ok=True)
    yield broker
    broker.clean_up()


def test_replay_shows_the_state_of_both_logs(live: Played) -> None:
    lines = run("replay", *live.data).lines
    assert lines[0].startswith("state of 2 logs as of ")
    assert [line for line in lines if line.startswith("  retained")] == [
        "  retained       1 topic, 6 B"
    ]
    rows = {line.split()[1]: line.split()[0] for line in lines if line.endswith((" 0", " 1"))}
    assert (rows[HERE], rows[THERE], rows[SENDER]) == ("p0", "p1", "p1")
    for log in live.logs:
        assert any(line.startswith(f"  log {log}: ") for line in lines)
    assert not any("$log/" in line for line in lines)
    head, *rest = run("replay", "--json", *live.data).objects
    assert (head["kind"], [one["log"] for one in head["logs"]]) == ("state", live.logs)
    assert head["entries"] == sum(one["entries"] for one in head["logs"])
    assert (head["sessions"], head["queued"], head["retained"]) == (3, 1, 1)
    found = {(one["kind"], one["log"], one.get("session")) for one in rest}
    assert found == {
        ("session", live.logs[0], HERE),
        ("session", live.logs[1], THERE),
        ("session", live.logs[1], SENDER),
        ("retained", live.logs[0], None),
    }
    assert "only_in" not in rest[-1]


def test_diff_of_two_moments(live: Played) -> None:
    ran = run("diff", live.moment, "now", *live.data)
    assert [line for line in ran.lines if line.startswith("~")] == [
        f"~ session {THERE}, log p1",
        f"~ session {HERE}, log p0",
        f"~ session {SENDER}, log p1",
        f"~ retained {BOTH}, 6 B",
    ]
    whole = run("diff", "2020-01-01", "now", *live.data).lines
    assert f"+ retained {BOTH}, 6 B" in whole
    for log in live.logs:
        assert any(line.startswith(f"  log {log}: its beginning to record ") for line in whole)
    both = run("diff", live.moment, "now", "--json", *live.data).objects
    assert [one["log"] for one in both] == live.logs
    assert [one["retained"]["replaced"] for one in both] == [[BOTH], [BOTH]]
    assert [sorted(one["sessions_changed"]) for one in both] == [[HERE], sorted([THERE, SENDER])]
    # Each line is the answer about that log alone.
    for one in both:
        ends = [one[end]["as_of"] for end in ("from", "to")]
        (alone,) = run("diff", *ends, "--node", one["log"], "--json", *live.data).objects
        del alone["sessions_changed"], one["sessions_changed"]  # with sessions of logs
        assert {"log": one["log"], **alone} == one
    assert "no differences" in run("diff", live.moment, live.moment, *live.data).out


def test_log_lists_the_events_of_both_logs_by_time(live: Played) -> None:
    merged = run("log", "--to", "now", "--json", *live.data).objects
    assert [one["time"] for one in merged] == sorted(one["time"] for one in merged)
    end = merged[-1]["time"]
    for log in live.logs:
        alone = run("log", "--to", end, "--node", log, "--json", *live.data).objects
        for one in alone:
            if one["type"] == "Followed":
                one["followed"] = one.pop("log")
            one["log"] = log
        assert [one for one in merged if one["log"] == log] == alone
    last = run("log", "-n", "5", "--to", end, "--json", *live.data).objects
    assert last == merged[-5:]
    first = run("log", "--from", live.moment, "-n", "4", "--json", *live.data).objects
    later = [one for one in merged if at(one) >= datetime.fromisoformat(live.moment)]
    assert first == later[:4]
    lines = run("log", "--topic", BOTH, "--type", "MessagePublished", *live.data).lines
    assert [line.split()[2] for line in lines] == ["p1", "p0", "p1", "p0"]
    assert f"{SENDER}   published {BOTH} QoS 1 retained, 4 B" in lines[0].replace("    ", "   ")
    assert f"$log/{live.logs[1]} published {BOTH} QoS 1 retained, 4 B" in lines[1]
    (line, *_) = run("log", "--session", THERE, *live.data).lines
    assert line.split()[2] != "p1"  # of the log of the session alone
    taken = run("log", "--session", f"$log/{live.logs[1]}", "--json", *live.data).objects
    assert {one["log"] for one in taken} == {live.logs[0]}


def at(event: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(event["time"])


def test_checks_of_both_logs(live: Played) -> None:
    lines = run("log", "verify", *live.data).lines
    for number, log in enumerate(live.logs):
        assert lines[number].startswith(f"log {log}: intact: ")
    assert lines[-1].startswith("all 2 logs are intact: ")
    # A client that disconnected, or the exchange, may still be recorded meanwhile.
    lines = run("verify", *live.data).lines
    for log in live.logs:
        assert sum(line.startswith(f"log {log}: equal: ") for line in lines) == 2, lines
    assert lines[-1] == "all 2 logs: equal"
    both = run("verify", "--json", *live.data).objects
    assert [(one["log"], one["equal"]) for one in both] == [(log, True) for log in live.logs]
    (one,) = run("verify", "--session", HERE, *live.data).lines[:1]
    assert one.startswith("equal: session ")


def test_what_cannot_be_answered_about_both_logs(live: Played) -> None:
    choose = f"give a time, or --node, one of {', '.join(live.logs)}"
    position = f"12 is a position of one log, and there are 2: {choose}"
    for command in (
        ("replay", "--at", "12"),
        ("diff", "12", "now"),
        ("diff", "10m ago", "12"),
        ("log", "--from", "12"),
        ("log", "--to", "12"),
        ("log", "usage", "--from", "12"),
    ):
        assert refused(*command, *live.data, code=2) == position
    assert refused("diff", "now", "10m ago", *live.data, code=2).startswith("now is later than ")
    session = refused("replay", "--session", "$log/x", *live.data, code=2)
    assert session.startswith("$log/x may be a session of any log: give --node, one of ")
    unknown = refused("replay", "--node", "nope", *live.data, code=66)
    assert unknown.endswith("contains no log FOLDMQ_LOG_nope")
    said = refused("log", "--session", "$log/x", *live.data, code=1)
    assert said == f"the logs {', '.join(live.logs)} have no session $log/x"
    one = run("replay", "--at", "1", "--node", live.logs[0], *live.data)
    assert one.out.startswith("state as of record 1, ")


def damage(broker: Broker, log: str) -> None:
    """Change a bit of a payload in a stored log."""
    (block,) = broker.data_dir.glob(f"jetstream/*/*/streams/FOLDMQ_LOG_{log}/msgs/*.blk")
    content = bytearray(block.read_bytes())
    content[content.index(b"closed")] ^= 1
    block.write_bytes(content)


def test_a_damaged_log_is_named(played: Played, stored: Broker) -> None:
    data, damaged = ("--data-dir", str(stored.data_dir)), played.logs[1]
    assert run("replay", *data).lines[0].startswith("state of 2 logs ")
    unanswered = refused("verify", *data, code=69)
    assert unanswered.startswith(f"log {played.logs[0]}: no broker answers for node ")
    damage(stored, damaged)
    for command in (("replay",), ("diff", "2020-01-01", "now"), ("replay", "--json")):
        assert refused(*command, *data, code=65).startswith(f"log {damaged}: the log is damaged: ")
    ran = run("log", "--from", "2020-01-01", *data, code=65)
    assert ran.err.startswith(f"foldmq: log {damaged}: the log is damaged: ")
    assert {line.split()[2] for line in ran.lines} == {"p0", "p1"}  # what comes before
    lines = run("log", "verify", *data, code=1).lines
    assert lines[-1].startswith(f"damaged: 1 of 2 logs, {damaged}; read ")
    incomplete = f"foldmq: incomplete, without 1 of 2 logs: log {damaged}: the log is damaged: "
    for checks in (("log", "usage"), ("verify", "--stored")):
        ran = run(*checks, *data, code=65)
        assert ran.err.startswith(incomplete)
        assert any(line.startswith(f"log {played.logs[0]}: ") for line in ran.lines)
    (found,) = run("log", "usage", "--json", *data, code=65).objects
    assert (found["not_read"], [one["log"] for one in found["logs"]]) == (
        [damaged],
        played.logs[:1],
    )


def test_a_missing_log_is_named(played: Played, stored: Broker) -> None:
    data, missing = ("--data-dir", str(stored.data_dir)), played.logs[1]
    (stream,) = stored.data_dir.glob(f"jetstream/*/*/streams/FOLDMQ_LOG_{missing}")
    shutil.rmtree(stream)
    said = f"log {missing}: data directory {stored.data_dir}: contains no log FOLDMQ_LOG_{missing}"
    for command in (("replay",), ("log",), ("diff", "1h ago", "now")):
        assert refused(*command, *data, code=66) == said
    for checks in (("log", "usage"), ("log", "verify"), ("verify", "--stored")):
        ran = run(*checks, *data, code=66)
        assert ran.err == f"foldmq: incomplete, without 1 of 2 logs: {said}\n"
        assert any(line.startswith(f"log {played.logs[0]}: ") for line in ran.lines)
