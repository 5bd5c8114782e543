"""The brokers of several logs, queried together: answers are combined, missing ones are
reported."""

import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from answeringbroker import AnsweringBroker, Answers

from cli.commands import actor_list, bulk_change, remove
from cli.commands.actor_list import LOG_COLUMN, fetch, gather, gather_top
from cli.commands.actor_page import broker_of
from cli.commands.command_flags import ChangeOptions
from cli.commands.receivers import outcome_lines, preview
from cli.commands.status import added_up, status_lines
from cli.logs.broker_client import LiveBroker, NoAnswer, NoLiveBroker, Refused, TooLarge
from cli.logs.broker_search import open_brokers
from cli.logs.log_brokers import LogBrokers, log_of_session
from cli.logs.source_flags import SourceFlags
from eventstore.errors import UsageError
from eventstore.format.positions import position
from eventstore.partitions import partition_names, partition_of

LOGS = partition_names("n", 3)


def brokers_of(answer: Callable[[str, str, Answers], Answers]) -> LogBrokers:
    """Return brokers of all logs; ``answer`` gets the log, the endpoint and the request."""

    def of(log: str) -> LiveBroker:
        return AnsweringBroker(lambda endpoint, request: answer(log, endpoint, request), log)

    return LogBrokers([of(log) for log in LOGS], LOGS)


def client_of(number: int) -> str:
    return next(name for name in map(str, range(100)) if partition_of(name, 3) == number)


def page(*rows: Answers, total: int = 0, more: bool = False) -> Answers:
    return {"rows": list(rows), "total": total, "more": more, "cursor": "x" if more else None}


async def test_rows_of_all_logs_name_their_log() -> None:
    def answer(log: str, endpoint: str, _request: Answers) -> Answers:
        if endpoint == "page":
            return page({"n": 2})
        return page({"n": 1}, total=2, more=log == "n-p1")

    rows, total = await gather(brokers_of(answer), "sessions", None)
    assert [(row["log"], row["n"]) for row in rows] == [
        ("n-p0", 1),
        ("n-p1", 1),
        ("n-p1", 2),
        ("n-p2", 1),
    ]
    assert total == 6


async def test_a_single_log_is_not_named() -> None:
    one = LogBrokers([AnsweringBroker(lambda *_: page({"n": 1}, total=1))])
    assert await gather(one, "sessions", None) == ([{"n": 1}], 1)
    chosen = LogBrokers([AnsweringBroker(lambda *_: page({"n": 1}, total=1), "n-p1")], LOGS)
    assert await gather(chosen, "sessions", None) == ([{"n": 1}], 1)


@pytest.mark.parametrize("late", [False, True])
async def test_a_silent_broker_is_left_out_and_reported(
    late: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def answer(log: str, endpoint: str, _request: Answers) -> Answers:
        if log == "n-p1" and (endpoint == "page") == late:
            raise NoAnswer("the broker of node n-p1 does not answer: time-out")
        return page({"n": 1}, total=5, more=endpoint != "page")

    brokers = brokers_of(answer)
    rows, total = await gather(brokers, "sessions", None)
    assert {row["log"] for row in rows} == {"n-p0", "n-p2"}
    assert total == 10
    assert [one.node for one in brokers.present] == ["n-p0", "n-p2"]
    with pytest.raises(NoLiveBroker) as missing:
        actor_list.show(rows, total, "session", [LOG_COLUMN], brokers, as_json=True)
    assert str(missing.value) == (
        "incomplete, without 1 of 3 logs: the broker of node n-p1 does not answer: time-out"
    )
    assert missing.value.exit_code == 69
    shown = [json.loads(line)["log"] for line in capsys.readouterr().out.splitlines()]
    assert sorted(set(shown)) == ["n-p0", "n-p2"]


async def test_no_answer_at_all_is_an_error() -> None:
    def answer(log: str, _endpoint: str, _request: Answers) -> Answers:
        raise NoLiveBroker(f"no broker of node {log} answers")

    with pytest.raises(NoLiveBroker, match="no broker of node n-p0 answers"):
        await gather(brokers_of(answer), "sessions", None)
    with pytest.raises(NoLiveBroker, match="no broker of node n-p0 answers"):
        await brokers_of(answer).any(lambda broker: broker.ask("retained"))


async def test_a_refusal_of_one_is_a_refusal() -> None:
    def answer(log: str, _endpoint: str, _request: Answers) -> Answers:
        if log == "n-p2":
            raise Refused("busy")
        return page()

    with pytest.raises(Refused, match="busy"):
        await gather(brokers_of(answer), "sessions", None)


async def test_the_highest_rows_of_each_log_are_requested() -> None:
    def answer(log: str, _endpoint: str, request: Answers) -> Answers:
        if "top" in request and log == "n-p2":
            raise TooLarge("too large")
        return page({"n": request.get("top")}, total=1)

    rows, _ = await gather_top(brokers_of(answer), "sessions", "queued", 5)
    assert [row["n"] for row in rows] == [None] * 3  # asked again, without a limit


async def test_common_data_is_requested_from_the_first_that_answers() -> None:
    def answer(log: str, _endpoint: str, _request: Answers) -> Answers:
        if log == "n-p0":
            raise NoLiveBroker("gone")
        return {"log": log}

    brokers = brokers_of(answer)
    assert await brokers.any(lambda broker: broker.ask("retained.get")) == {"log": "n-p1"}


async def test_a_broker_that_is_not_ready_is_not_asked_again() -> None:
    class Starting:
        async def request(self, _subject: str, _data: bytes, **_more: float) -> SimpleNamespace:
            return SimpleNamespace(data=b'{"error": "it has just started", "not_ready": true}')

    starting = LiveBroker("n-p0", "here", cast("Any", Starting()), "n-p0")
    (_, ready, _) = brokers_of(lambda log, *_: {"node": log}).present
    brokers = LogBrokers([starting, ready], LOGS)
    found = await brokers.any(lambda broker: broker.ask("retained"))
    assert found == {"node": "n-p1"}
    with pytest.raises(NoLiveBroker, match="node n-p0 cannot answer yet: it has just started"):
        await LogBrokers([starting]).any(lambda broker: broker.ask("retained"))


async def test_a_preview_has_the_receivers_of_all_logs() -> None:
    kept = {"position": position(5, 1), "qos": 1, "size": 2}

    def answer(log: str, _endpoint: str, _request: Answers) -> Answers:
        found = page({"client": f"c-{log}", "why": "sent"})
        return {**found, "retained": None if log == "n-p0" else kept}

    rows, retained = await preview(brokers_of(answer), "a/b", 1)
    assert [(row["log"], row["client"]) for row in rows] == [(log, f"c-{log}") for log in LOGS]
    assert outcome_lines("a/b", rows, retained) == [
        "a/b, a message at QoS 1 now: sent to 3 clients, queued for 0",
        "retained: in log n-p1, message 5.1, QoS 1, 2 B; sent first to new subscribers",
    ]


def test_a_session_is_asked_of_the_broker_of_its_log() -> None:
    brokers = brokers_of(lambda *_: {})
    for number, log in enumerate(LOGS):
        assert brokers.of_session(client_of(number)).node == log
        assert broker_of(brokers, client_of(number)).node == log
    with pytest.raises(UsageError, match="is an actor of one log, and there are 3: give --node"):
        broker_of(brokers, "session:7")
    with pytest.raises(UsageError, match="one of n-p0, n-p1, n-p2"):
        brokers.of_session("$log/n-p1")
    chosen = LogBrokers(brokers.present[:1], LOGS)
    assert chosen.of_session(client_of(0)).node == "n-p0"
    assert broker_of(chosen, "session:7").node == "n-p0"
    assert chosen.of_session("$share/g/a/+").node == "n-p0"  # its part there, or its home
    with pytest.raises(UsageError, match="belongs to the log n-p1, not to n-p0: give --node n-p1"):
        chosen.of_session(client_of(1))


def test_the_log_of_a_session() -> None:
    assert log_of_session([], "c") is None
    assert log_of_session(LOGS, client_of(2)) == "n-p2"
    assert log_of_session(LOGS, "$log/n-p1") is None
    share = "$share/g/a"
    assert log_of_session(LOGS, share) == LOGS[partition_of(share, 3)]
    assert all(log_of_session(LOGS, share, log) == log for log in LOGS)


def test_changes_of_several_logs_name_them() -> None:
    done = bulk_change.ChangeResult()
    assert done.recorded() == ""
    done.take({"done": ["a"], "refused": [], "position": position(12, 3)}, "n-p0")
    done.take({"done": ["b"], "refused": [], "position": position(4, 0)}, "n-p1")
    done.take({"done": ["c"], "refused": [], "position": position(13, 0)}, "n-p0")
    assert done.recorded() == ", recorded at 13.0 of log n-p0, 4.0 of log n-p1"


YES = ChangeOptions(yes=True)


@pytest.mark.parametrize("refused", [False, True])
def test_a_purge_reports_its_progress_when_a_broker_ends(
    refused: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The changes of the other logs are made and reported, and so is the missing broker."""

    def answer(log: str, endpoint: str, request: Answers) -> Answers:
        if endpoint == "sessions":
            assert request == {"match": "a*", "connected": False, "without_logs": True}
            session = {"connected": False, "closed_ms": 5, "subscriptions": 0, "in_flight": 0}
            return page({"session": f"c-{log}", "queued": 0, **session}, total=1)
        assert (endpoint, request["clients"]) == ("change", [f"c-{log}"])
        if log == "n-p1":
            raise NoAnswer("the broker of node n-p1 does not answer: time-out")
        if refused and log == "n-p2":
            return {"done": [], "refused": [[f"c-{log}", "is back"]], "position": None}
        return {"done": request["clients"], "refused": [], "position": position(7, 0)}

    @contextlib.asynccontextmanager
    async def brokers(_flags: SourceFlags) -> AsyncIterator[LogBrokers]:
        yield brokers_of(answer)

    monkeypatch.setattr(remove, "open_brokers", brokers)
    with pytest.raises(NoLiveBroker) as missing:
        remove.purge(SourceFlags(), None, "a*", YES)
    assert str(missing.value) == (
        "incomplete, without 1 of 3 logs: the broker of node n-p1 does not answer: time-out; the "
        "change may still be made"
    )
    said = capsys.readouterr()
    if refused:
        assert said.out == "removed 1 session, recorded at 7.0 of log n-p0\n"
        assert said.err == "foldmq: c-n-p2: is back\n"
    else:
        assert said.out == ("removed 2 sessions, recorded at 7.0 of log n-p0, 7.0 of log n-p2\n")


ROW = {"name": "erp", "state": "sending", "behind_ms": 0}


def status_of(number: int) -> Answers:
    return {
        "ready": number != 2,
        "subscriptions": number,
        "retained": {"count": number, "bytes": 10 * number},
        "messages": {"in": [number, 0, 1], "out": [0, number, 0]},
        "connections": {"open": number, "paused": 0, "limit": 100 - number},
        "sessions": {
            "total": number + 2,
            "connected": 1,
            "frozen": 2,
            "logs": 2,
            "limit": 0,
        },
        "actors": {"total": 5},
        "kernel": {"mailbox_high_water": 10 * number},
        "census": {"in_flight": 1, "releasing": 0, "queued": number, "queued_bytes": 7},
        "process": {"rss": 1000, "cpu_s": 0.5},
        "dropped": {"expired": number, "drained": 0} if number else {},
        "node": f"n{number}",
        "destinations": [ROW] if number else [],
        "log": {
            "stream_bytes": 100,
            "disk_free": 5000 - number,
            "pending_bytes": number,
            "gated_bytes": 1,
        },
    }


def test_statuses_are_added_up() -> None:
    total = added_up([status_of(number) for number in range(3)])
    assert total["ready"] is False
    assert total["subscriptions"] == 3
    assert total["retained"] == {"count": 2, "bytes": 20}  # every log has all of them
    assert total["messages"] == {"in": [3, 0, 3], "out": [0, 3, 0]}
    assert total["connections"] == {"open": 3, "paused": 0, "limit": 98}
    assert total["sessions"] == {
        "total": 9,
        "connected": 3,
        "frozen": 6,
        "logs": 6,
        "limit": None,
    }
    assert total["kernel"] == {"mailbox_high_water": 20}  # of the fullest log
    assert total["census"] == {"in_flight": 3, "releasing": 0, "queued": 3, "queued_bytes": 21}
    assert total["dropped"] == {"expired": 3, "drained": 0}
    assert total["destinations"] == [{**ROW, "log": f"n{number}"} for number in (1, 2)]
    in_memory = {"pending_bytes": 3, "gated_bytes": 3, "limit": 0}
    assert total["log"] == {"stream_bytes": 300, "disk_free": 4998, **in_memory}
    unknown, recovering = status_of(1), status_of(2)
    unknown["log"] |= {"stream_bytes": None, "disk_free": None}
    recovering["log"] = None
    in_memory = {"pending_bytes": 1, "gated_bytes": 1, "limit": 0}
    assert added_up([unknown, recovering])["log"] == {
        "stream_bytes": None,
        "disk_free": None,
        **in_memory,
    }
    assert added_up([recovering])["log"] is None


def test_the_status_of_several_logs_does_not_count_internal_sessions() -> None:
    brokers = brokers_of(lambda *_: {})
    found = [
        {**status_of(number), "node": str(number), "trouble": [], "software": "0.9"}
        for number in range(3)
    ]
    lines = list(status_lines(found, brokers))
    assert "  sessions       3 connected, 0 offline or shared" in lines
    found[1]["clock"] = {"last": {"ms": -5000, "seen": "running", "age_ms": 60_000}}
    assert any(
        line.startswith("  clock          log 1: jumped back by 5 s 1 min ago")
        for line in status_lines(found, brokers)
    )
    earlier = [{**one, "sessions": {"total": 1, "connected": 1}} for one in found]
    assert added_up(earlier)["sessions"]["logs"] == 0


def test_lines_of_a_status_have_80_columns() -> None:
    brokers = brokers_of(lambda *_: {})
    much = 12_345_678_901
    found = [
        {
            **status_of(number),
            "node": LOGS[number],
            "trouble": ["the log cannot be written: " + "JetStream does not respond, " * 8],
            "software": "0.9",
            "messages": {"in": [much] * 3, "out": [much] * 3},
            "dropped": dict.fromkeys(["queue_messages", "queue_bytes", "expired", "drained"], much),
            "census": {"in_flight": much, "releasing": 0, "queued": much, "queued_bytes": much},
        }
        for number in range(3)
    ]
    lines = "\n".join(status_lines(found, brokers)).splitlines()
    assert max(map(len, lines)) <= 80
    received = lines.index(next(line for line in lines if line.startswith("  received ")))
    assert lines[received + 1].startswith(" " * 17)
    assert f"{12 * much:,}" in "".join(lines)  # dropped


async def test_rows_that_stand_for_other_logs_are_not_requested(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Answers] = []

    def answer(log: str, endpoint: str, request: Answers) -> Answers:
        if endpoint == "status":  # is anything unsure because records were lost?
            return {}
        assert endpoint == "sessions"
        asked.append(request)
        return page({"client": f"c-{log}"}, total=7)

    @contextlib.asynccontextmanager
    async def brokers(_flags: SourceFlags) -> AsyncIterator[LogBrokers]:
        yield brokers_of(answer)

    monkeypatch.setattr(actor_list, "open_brokers", brokers)
    rows, total, _ = await fetch(SourceFlags(), "sessions", {}, None, (), 2)
    assert [one.get("without_logs") for one in asked] == [True] * 3
    assert (len(rows), total) == (3, 21)
    asked.clear()
    await fetch(SourceFlags(), "sessions", {"match": "*"}, None, (), 2)
    assert [one.get("without_logs") for one in asked] == [None] * 3


@pytest.mark.parametrize(("count", "said"), [(1, "1 shared subscription is"), (2, "2 shared")])
def test_a_purge_leaves_shared_subscriptions_out(
    count: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    removed: list[str] = []

    def answer(log: str, endpoint: str, request: Answers) -> Answers:
        if endpoint == "sessions":
            session = {"connected": False, "closed_ms": 5, "subscriptions": 0, "in_flight": 0}
            names = [f"c-{log}", *(f"$share/g{number}/a" for number in range(count))]
            rows = [
                {
                    "session": name,
                    "queued": 0,
                    "members": 2 if "$share" in name else None,
                    **session,
                }
                for name in names
            ]
            return page(*rows, total=len(rows))
        removed.extend(request["clients"])
        return {"done": request["clients"], "refused": [], "position": position(7, 0)}

    @contextlib.asynccontextmanager
    async def brokers(_flags: SourceFlags) -> AsyncIterator[LogBrokers]:
        yield brokers_of(answer)

    monkeypatch.setattr(remove, "open_brokers", brokers)
    remove.purge(SourceFlags(), None, "*", YES)
    assert removed == [f"c-{log}" for log in LOGS]
    printed = capsys.readouterr()
    assert printed.out.startswith("removed 3 sessions, ")
    assert printed.err.startswith(f"foldmq: {said}")


class FoundClient:
    """A NATS client on whose server some brokers answer."""


@pytest.mark.parametrize(
    ("answering", "streams", "found"),
    [
        (["plant-p1"], ["plant-p0", "plant-p1"], ["plant-p0", "plant-p1"]),
        (["plant-p0", "plant-p1"], [], ["plant-p0", "plant-p1"]),
        (["other"], ["plant-p0", "plant-p1", "other"], ["other"]),
        (["x-p1"], ["x-p1"], ["x-p1"]),
        (["a-p0", "a-p1", "a-p3"], [], ["a-p0", "a-p1", "a-p2", "a-p3"]),
        (["a-p0", "a-p1"], ["a-p0", "a-p1", "a-p999999999"], ["a-p0", "a-p1"]),
        (["x-p0"], ["x-p0", "x"], ["x-p0"]),
    ],
)
async def test_logs_are_found_on_a_nats_server(
    answering: list[str],
    streams: list[str],
    found: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    async def no_client(*_: object) -> FoundClient:
        return FoundClient()

    async def answers(*_: object) -> list[str]:
        return answering

    async def list_logs(*_: object) -> list[str]:
        return [f"FOLDMQ_LOG_{one}" for one in streams]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("cli.logs.broker_search._connect", no_client)
    monkeypatch.setattr("cli.logs.broker_search.find_nodes", answers)
    monkeypatch.setattr("cli.logs.broker_search.list_logs", list_logs)
    async with open_brokers(SourceFlags({"nats_url": "nats://127.0.0.1:4"})) as brokers:
        assert brokers.nodes == found
        assert brokers.several == (len(found) > 1)
