"""The parts of the operator's commands that need no broker: tables, tree, requests, portions."""

import ast
import importlib
import inspect
import io
import json
import os
import pkgutil
import re
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import nats.errors
import pytest
import typer
from answeringbroker import AnsweringBroker, broker_with
from typer.testing import CliRunner

import actors
from actors.connection.core import ConnectionCore
from actors.connection.input_actor import InputActor
from actors.inspection import views
from actors.kernel.actor import LoopActor
from actors.session.core import SessionCore
from cli.commands import actor_list, bulk_change, receivers, remove, retained, tail
from cli.commands.actor_list import (
    ACTOR_TYPES,
    NO_ORDER,
    SESSION_TYPES,
    STATES,
    Tree,
    check_word,
    gather_top,
    id_order,
)
from cli.commands.actor_page import (
    ask_session,
    connection_rates,
    read_session,
    subscription_lines,
)
from cli.commands.command_flags import (
    ActorListFlags,
    ChangeOptions,
    RowFlags,
)
from cli.commands.receivers import outcome_lines
from cli.commands.remove import remove_offline
from cli.commands.session_list import session_selection
from cli.common import tables, text
from cli.logs import broker_client
from cli.logs.broker_client import NoLiveBroker, Refused, TooLarge
from cli.logs.broker_search import open_brokers
from cli.logs.log_brokers import LogBrokers
from cli.logs.source_flags import SourceFlags
from cli.main import app as foldmq
from eventstore.datadir import DataDir
from eventstore.errors import UsageError
from eventstore.format.positions import position
from projections.state.session import InFlight, SessionState, Will
from projections.state.waiting_queue import WaitingQueue
from projections.views.session_text import session_lines
from projections.views.session_view import (
    DeliveryView,
    InboundView,
    MemberView,
    MessageView,
    Part,
    SessionView,
    SubscriptionView,
    WillView,
    session_from,
    session_view,
)
from projections.views.vocabulary import json_object, plain

HOSTILE = "a\x1b[2J\n\u202e<b>"
NOW = 1_795_271_187_000


# ----------------------------------------------------------------------------------- tables


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def listed(out: io.StringIO, rows: list[tuple[str, int | None]]) -> list[str]:
    table: tables.Table[tuple[str, int | None]] = tables.Table(
        [
            tables.Column("COUNT", lambda row: row[1], right=True),
            tables.Column("WIDE", lambda _row: "wide", wide=True),
            tables.Column("NAME", lambda row: row[0], name=True),
        ],
        out,
    )
    for row in rows:
        table.add(row)
    table.close()
    return out.getvalue().splitlines()


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")


def test_a_table_without_a_terminal_cuts_nothing() -> None:
    lines = listed(io.StringIO(), [("n" * 300, 12345), (HOSTILE, None)])
    assert lines == [
        "COUNT  WIDE  NAME",
        "12345  wide  " + "n" * 300,
        "    -  wide  a\\u001b[2J\\n\\u202e<b>",
    ]


@pytest.mark.usefixtures("narrow")
def test_a_table_on_a_terminal_fits_and_leaves_columns_out() -> None:
    lines = listed(Screen(), [("n" * 300, 12345), ("表" * 30, 7), (HOSTILE, None)])
    assert lines[0].split() == ["COUNT", "NAME"]
    assert lines[1] == "12,345  " + "n" * 31 + "…"
    assert lines[2].startswith("     7  表表")
    assert lines[2].endswith("…")
    assert all(tables.cell_len(line) <= 40 for line in lines)
    assert lines[3] == "     -  a\\u001b[2J\\n\\u202e<b>"


def test_a_table_of_many_rows_is_printed_in_blocks() -> None:
    lines = listed(io.StringIO(), [(str(number), number) for number in range(1201)])
    assert len(lines) == 1202
    assert [line.split()[-1] for line in lines[1:]] == [str(number) for number in range(1201)]
    assert sum("NAME" in line for line in lines) == 1


def test_a_name_that_takes_no_room_is_cut_as_well() -> None:
    assert tables.cut("e" + "\u0301" * 10, 5) == "e" + "\u0301" * 10
    assert tables.cut("abcdef", 5) == "abcd…"
    assert tables.cut("表表表", 5) == "表表…"


@pytest.mark.parametrize(
    ("milliseconds", "shown"),
    [
        (0, "0.0 ms"),
        (3.21, "3.2 ms"),
        (340, "340 ms"),
        (1500, "1.5 s"),
        (42_000, "42 s"),
        (61_000, "1 min"),
        (7_300_000, "2 h"),
        (5 * 86_400_000, "5 d"),
    ],
)
def test_spans_are_short(milliseconds: float, shown: str) -> None:
    assert tables.duration_text(milliseconds) == shown


def test_moments_are_shown_by_their_age() -> None:
    assert tables.time_ago(None, NOW) is tables.idle(None, NOW) is None
    assert tables.time_ago(NOW - 61_000, NOW) == "1 min ago"
    assert tables.idle(NOW + 5000, NOW) == "0 s"  # the broker's clock may be ahead


# ------------------------------------------------------------------------------------- tree


def actor(urn: str, parent: str | None = None, **more: Any) -> dict[str, Any]:
    kind = urn.partition(":")[0]
    row = {"id": urn, "type": kind, "name": urn, "client": None, "parent": parent}
    return {**row, "state": "running", "mailbox": 0, "handled": 3, **more}


def test_a_tree_is_drawn_with_some_of_each_type() -> None:
    rows = [actor("broker:1"), actor("inspector:2", "broker:1")]
    rows += [actor(f"connection:{number}", "broker:1") for number in range(10, 30)]
    rows += [actor(f"session:{number}", "broker:1") for number in range(30, 33)]
    rows += [actor("subscription:40", "session:30", mailbox=5)]
    lines = list(Tree(rows).lines(6))
    assert lines == [
        "broker:1  broker:1  running, 3 handled",
        "├─ connection:10  connection:10  running, 3 handled",
        "├─ connection:11  connection:11  running, 3 handled",
        "├─ connection:12  connection:12  running, 3 handled",
        "├─ inspector:2  inspector:2  running, 3 handled",
        "├─ session:30  session:30  running, 3 handled",
        "│  └─ subscription:40  subscription:40  running, 3 handled, 5 waiting",
        "├─ session:31  session:31  running, 3 handled",
        "└─ ... and 18 more: 17 connections, 1 session",
    ]
    assert list(Tree(rows, plain=True).lines(6))[-1].startswith("`- ... and 18 more")
    assert len(list(Tree(rows).lines(100))) == len(rows)


def test_an_actor_whose_parent_is_gone_is_not_lost() -> None:
    rows = [actor("broker:1"), actor("subscription:9", "session:8", name=HOSTILE)]
    tree = Tree(rows)
    assert [row["id"] for row in tree.roots] == ["broker:1", "subscription:9"]
    assert all(line.isprintable() for line in tree.lines(20))
    assert tree.object(rows[0])["children"] == []


def test_actors_are_in_the_order_of_their_numbers() -> None:
    rows = [actor("session:10"), actor("session:9"), actor("broker:1")]
    assert [row["id"] for row in sorted(rows, key=id_order)] == [
        *("broker:1", "session:9", "session:10"),
    ]


# ---------------------------------------------------------------------------------- asking


ASK = ChangeOptions()


@pytest.fixture
def type_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Makes stdin a terminal with this input."""
    master, slave = os.openpty()
    with os.fdopen(slave) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        yield lambda words: cast("None", os.write(master, words.encode()))
    os.close(master)


@pytest.mark.parametrize("answer", ["y\n", "YES\n", " yes \n"])
async def test_a_question_is_answered_with_yes(
    answer: str, type_in: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    type_in(answer)
    assert await bulk_change.confirmed(["  one"], "remove 1 session", ASK)
    assert capsys.readouterr() == ("", "  one\nRemove 1 session? [y/N] ")


@pytest.mark.parametrize("answer", ["n\n", "\n", "\x04", "yes please\n", "j\n"])
async def test_all_else_is_no(
    answer: str, type_in: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    type_in(answer)  # \x04 is the end of input
    with pytest.raises(typer.Exit) as ended:
        await bulk_change.confirmed([], "remove 1 session", ASK)
    assert ended.value.exit_code == 1
    assert capsys.readouterr().err.endswith("foldmq: nothing was changed\n")


async def test_without_a_terminal_confirmation_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    with pytest.raises(UsageError, match="give --yes to remove 1 session"):
        await bulk_change.confirmed([], "remove 1 session", ASK)


async def test_a_dry_run_lists_all_and_wins_over_yes(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"  {number}" for number in range(30)]
    manner = ChangeOptions(yes=True, dry_run=True)
    assert not await bulk_change.confirmed(lines, "remove 30 sessions", manner)
    shown = capsys.readouterr()
    assert shown.out.splitlines() == lines
    assert shown.err == "foldmq: dry run, nothing was changed: would remove 30 sessions\n"


async def test_a_question_names_the_first_ones(
    type_in: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    type_in("y\n")
    await bulk_change.confirmed([f"  {number}" for number in range(30)], "remove", ASK)
    lines = capsys.readouterr().err.splitlines()
    assert lines[19:] == ["  19", "  and 10 more (--dry-run lists all)", "Remove? [y/N] "]


def test_portions_fit_into_a_request() -> None:
    assert list(bulk_change.portions([])) == []
    assert [len(one) for one in bulk_change.portions(str(n) for n in range(1201))] == [
        500,
        500,
        201,
    ]
    long = ["\x01" * 60_000 + str(number) for number in range(3)]  # each 360 kB as JSON
    assert list(bulk_change.portions(long)) == [[one] for one in long]


def test_results_and_refusals_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    done = bulk_change.ChangeResult()
    done.take({"done": ["a", "b"], "refused": [[HOSTILE, "came back\n"]], "position": None})
    done.take({"done": ["c"], "refused": [], "position": position(12, 3)})
    with pytest.raises(typer.Exit):
        bulk_change.tell(done, "removed", "session", ASK)
    assert capsys.readouterr() == (
        "removed 3 sessions, recorded at 12.3\n",
        "foldmq: a\\u001b[2J\\n\\u202e<b>: came back\\n\n",
    )
    bulk_change.tell(
        bulk_change.ChangeResult(),
        "removed",
        "session",
        ChangeOptions(yes=True, dry_run=True),
    )
    assert capsys.readouterr() == ("", "")


# --------------------------------------------------------------------------- asking a broker


async def test_a_purge_keeps_sessions_that_went_offline_later() -> None:
    """Each portion is bound by the latest end of a session in it."""
    rows = [{"session": f"c{number}", "closed_ms": 1000 + number} for number in range(700)]
    broker = AnsweringBroker(lambda _, request: {"done": request["clients"], "refused": []})
    done = bulk_change.ChangeResult()
    await remove_offline(broker, rows, done)
    assert [
        (len(request["clients"]), request["offline_before_ms"]) for _, request in broker.asked
    ] == [
        (500, 1499),
        (200, 1699),
    ]
    assert {request["do"] for _, request in broker.asked} == {"remove_sessions"}
    assert {request["by"] for _, request in broker.asked} == {bulk_change.operator_name()}
    assert len(done.done) == 700


def session_part(request: dict[str, Any], total: int) -> dict[str, Any]:
    first, most = request.get("offset", 0), request["most"]
    if most > 30:
        raise TooLarge("too large")
    numbers = range(first, min(total, first + most))
    state = SessionState("c")
    for number in range(total):
        state.subscription(f"f{number}")
    actors = [{"id": "session:1"}, *({"id": f"subscription:{number}"} for number in numbers)]
    view = session_view(state, offset=first, most=most)
    return {**plain(view), "actors": actors}


@pytest.mark.parametrize(("count", "shown"), [(None, 100), (50, 50), (20, 20), (500, 100)])
async def test_a_session_is_read_in_parts_that_fit(count: int | None, shown: int) -> None:
    broker = AnsweringBroker(lambda _, request: session_part(request, 100))
    found = await read_session(broker, "c", count)
    assert found.live is not None
    rows = [row.filter for row in found.subscriptions.rows]
    assert rows[:shown] == [f"f{number}" for number in range(shown)]
    assert len(found.live["actors"]) == len(rows) + 1


async def test_a_change_without_an_answer_may_be_done() -> None:
    broker = broker_with(TimeoutError())
    with pytest.raises(NoLiveBroker, match=r"does not answer: time-out$"):
        await broker.ask("status")
    with pytest.raises(NoLiveBroker) as said:
        await bulk_change.change(broker, "kick", bulk_change.ChangeResult(), client="c")
    assert str(said.value) == (
        "the broker of node n1 on here does not answer: time-out; the change may still be made"
    )
    assert said.value.exit_code == 69


async def test_a_change_without_a_responder_is_not_done() -> None:
    broker = broker_with(nats.errors.NoRespondersError())
    with pytest.raises(NoLiveBroker, match=r"answers on here: check that it is running$"):
        await bulk_change.change(broker, "kick", bulk_change.ChangeResult(), client="c")


@pytest.mark.parametrize(
    ("which", "said"),
    [
        ("session:999", "no actor session:999"),
        ("pump:7", "no session 'pump:7'"),
        ("pump", "no session 'pump'"),
    ],
)
async def test_a_name_that_looks_like_an_actor_id_is_reported_as_one(which: str, said: str) -> None:
    def refuse(_endpoint: str, request: dict[str, Any]) -> dict[str, Any]:
        raise Refused(f"no session {request['client']!r}")

    with pytest.raises(Refused) as refused:
        await ask_session(AnsweringBroker(refuse), which, most=0)
    assert str(refused.value) == said


async def test_an_answer_that_never_fits_is_refused() -> None:
    def refuse(_endpoint: str, _request: dict[str, Any]) -> dict[str, Any]:
        raise TooLarge("too large")

    with pytest.raises(TooLarge):
        await read_session(AnsweringBroker(refuse), "c", None)


async def test_all_pages_are_requested() -> None:
    pages = {
        None: {"rows": [{"n": 1}], "more": True, "cursor": "x", "total": 3},
        "x": {"rows": [{"n": 2}, {"n": 3}], "more": False, "cursor": None, "total": 3},
    }
    broker = AnsweringBroker(lambda _, request: pages[request.get("cursor")])
    found = [row async for row in cast("AsyncIterator[dict[str, Any]]", broker.rows("actors"))]
    assert found == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert broker.asked == [("actors", {}), ("page", {"cursor": "x"})]


async def test_the_highest_are_requested_one_by_one_if_they_do_not_fit() -> None:
    def answer(_endpoint: str, request: dict[str, Any]) -> dict[str, Any]:
        if "top" in request:
            raise TooLarge("too large")
        return {"rows": [{"n": 1}], "more": False, "cursor": None, "total": 1}

    broker = AnsweringBroker(answer)
    brokers = LogBrokers([broker])
    assert await gather_top(brokers, "actors", "busy", 5, type="session") == ([{"n": 1}], 1)
    assert broker.asked == [
        ("actors", {"top": {"by": "busy", "count": 5}, "type": "session"}),
        ("actors", {"type": "session"}),
    ]


# -------------------------------------------------------------------------------- requests


def test_ages_are_read() -> None:
    assert session_selection("a*", False, "30d") == {
        "match": "a*",
        "connected": False,
        "offline_s": 30 * 86_400.0,
    }
    assert session_selection(None, None, None) == {}
    with pytest.raises(UsageError, match='--older-than "soon\\\\u001b" must be a time'):
        session_selection(None, None, "soon\x1b")


def test_orders_are_checked() -> None:
    check_word(NO_ORDER, None, ["a"])
    check_word(NO_ORDER, "a", ["a"])
    with pytest.raises(UsageError, match='cannot sort by "x": must be one of a, b'):
        check_word(NO_ORDER, "x", ["a", "b"])


def test_the_words_for_actors_are_those_of_the_broker() -> None:
    function = ast.parse(inspect.getsource(views.state_of)).body[0]
    said = {
        one.value
        for returned in ast.walk(function)
        if isinstance(returned, ast.Return) and returned.value is not None
        for one in ast.walk(returned.value)
        if isinstance(one, ast.Constant) and isinstance(one.value, str)
    }
    assert set(STATES) == said


def _actors(kind: type[LoopActor]) -> Iterator[str]:
    for one in kind.__subclasses__():
        yield from _actors(one)
        bases = (ConnectionCore, InputActor, SessionCore)
        if one.__module__.startswith("actors.") and one not in bases:
            yield one.__name__.lower()


_CLEAR = ("broker", "session", "connection", "subscription", "bridge")
"""Types of actors that explain themselves."""


def test_all_types_of_actors_can_be_selected_and_are_explained() -> None:
    for module in pkgutil.walk_packages(actors.__path__, "actors."):
        importlib.import_module(module.name)
    assert set(ACTOR_TYPES) == set(_actors(LoopActor))
    help_page = CliRunner().invoke(foldmq, ["actors", "ls", "--help"]).output
    page = (Path(__file__).parents[2] / "docs" / "inspector.md").read_text()
    explained = page.partition("Types that do not explain themselves:")[2].partition("\n\n")[0]
    for name in ACTOR_TYPES:
        assert re.search(rf"\b{name}\b", help_page)
        assert name in _CLEAR or f"`{name}`" in explained


def test_a_session_is_not_listed_as_working_for_itself() -> None:
    (column,) = [one for one in actor_list.actor_columns() if one.title == "CLIENT"]
    for kind in SESSION_TYPES:
        assert column.cell({"type": kind, "client": "c", "name": "c"}) is None


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (
            ActorListFlags(type="sesion"),
            'unknown type "sesion": must be one of broker, inspector, session, ',
        ),
        (
            ActorListFlags(state="x\x1b"),
            'unknown state "x\\\\u001b": must be one of connected, offline, ',
        ),
    ],
)
def test_arguments_are_checked_before_any_request(wanted: ActorListFlags, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        actor_list.run_actors(SourceFlags(), wanted, RowFlags(), as_json=False)


@pytest.mark.parametrize("topic", ["a/+", "#", ""])
def test_topics_are_checked(topic: str) -> None:
    with pytest.raises(UsageError, match="topic name"):
        receivers.run_receivers(SourceFlags(), topic, 1, as_json=False)
    with pytest.raises(UsageError, match="topic name"):
        retained.run_get(SourceFlags(), topic, newline=True, as_json=False)


@pytest.mark.parametrize("topic_filter", ["a/#/b", "a/#/", "a+", ""])
def test_filters_are_checked(topic_filter: str) -> None:
    with pytest.raises(UsageError, match="filter"):
        retained.run_list(SourceFlags(), topic_filter, None, not_permitted=False, as_json=False)
    with pytest.raises(UsageError, match="filter"):
        remove.clear(SourceFlags(), topic_filter, ASK, not_permitted=False)
    with pytest.raises(UsageError, match="filter"):
        tail.trace_target(None, None, topic_filter)


@pytest.mark.parametrize(
    ("embedded", "said"),
    [
        (False, r"uses an external NATS server: give --nats-url$"),
        (True, r"if it is starting or stopping, or give --nats-url"),
    ],
)
@pytest.mark.system
async def test_a_directory_in_use_without_its_nats_is_named(
    embedded: bool, said: str, tmp_path: Path
) -> None:
    flags = SourceFlags({"data_dir": str(tmp_path)})
    with DataDir(tmp_path) as held:
        held.node()
        if embedded:
            held.credentials()
            held.nats_config.write_text('{"port": 1}')
        with pytest.raises(NoLiveBroker, match=said):
            async with open_brokers(flags):
                pytest.fail("there is no broker")
    with pytest.raises(NoLiveBroker, match="no broker is running on"):
        async with open_brokers(flags):
            pytest.fail("there is no broker")


async def test_a_directory_that_must_not_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(_self: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_file", denied)
    flags = SourceFlags({"data_dir": str(tmp_path)})
    with pytest.raises(NoLiveBroker, match="run this command as the user of the broker"):
        async with open_brokers(flags):
            pytest.fail("there is no broker")


@pytest.mark.parametrize("config", ["{", "[]", '{"port": "x"}', '{"port": 1}'])
@pytest.mark.system
async def test_a_directory_without_a_broker_is_named(tmp_path: Path, config: str) -> None:
    (tmp_path / "node").write_text("n1\n")
    (tmp_path / "nats.credentials").write_text(json.dumps({"user": "u", "password": "p"}))
    (tmp_path / "nats.conf").write_text(config)
    with pytest.raises(NoLiveBroker, match="no broker is running on"):
        async with open_brokers(SourceFlags({"data_dir": str(tmp_path)})):
            pytest.fail("there is no broker")
    assert not (tmp_path / "foldmq.lock").exists()  # nothing is made by looking


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (SourceFlags(node="a.b"), "not a valid node name: a.b"),
        (SourceFlags(node="n\x1b"), r"not a valid node name: n\\u001b"),
        (SourceFlags(node="a", stream="b"), "cannot be combined"),
        (SourceFlags(stream="OTHER"), "a broker cannot be found by its stream OTHER"),
    ],
)
async def test_a_node_is_named_well(flags: SourceFlags, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        async with open_brokers(flags):
            pytest.fail("there is no broker")


@pytest.mark.parametrize("answer", [b"", b"[]", b"nonsense", b"\xff"])
async def test_an_invalid_answer_is_reported(answer: bytes) -> None:
    broker = broker_with(answer)
    with pytest.raises(NoLiveBroker, match="check that both have the same version"):
        await broker.ask("status")


async def test_a_name_that_is_not_text_is_reported() -> None:
    broker = broker_with(b"{}")
    with pytest.raises(UsageError, match="not UTF-8"):
        await broker.ask("session", client="\udcff")


async def test_a_refusal_is_harmless() -> None:
    answer = json.dumps({"error": f"no session {HOSTILE}" + "x" * 5000}).encode()
    broker = broker_with(answer)
    with pytest.raises(Refused) as refused:
        await broker.ask("session")
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 1200
    assert refused.value.exit_code == 1


# ------------------------------------------------------------------------------------ pages


def test_json_has_positions_and_times_as_people_write_them() -> None:
    found = json_object(
        {
            "position": position(12, 3),
            "oldest": MessageView(position(1, 0)),
            "rows": [{"oldest": [{"position": position(2, 1)}], "sent_ms": 5}, {"closed_ms": None}],
            "age_ms": 7,
        }
    )
    oldest = {"position": "1.0", "topic": None, "size": None, "published_at": None}
    rows = [
        {"oldest": [{"position": "2.1"}], "sent_at": "1970-01-01T00:00:00.005Z"},
        {"closed_at": None},
    ]
    assert found == {"position": "12.3", "oldest": oldest, "rows": rows, "age_ms": 7}


def session_row_of(name: str = "c", **changed: Any) -> SessionView:
    """Return an offline session without a connection."""
    live = {"actor": None, "connection": None, "expires_ms": None, "actors": []}
    view = session_view(SessionState(name, clean=False, closed_ms=NOW - 60_000))
    return replace(view, live=live | changed.pop("live", {}), **changed)


def test_a_view_is_the_same_after_its_transport() -> None:
    state = SessionState("c", connected=True, user="u", level=5, last_pid=8, queued=2)
    state.will = Will("w", 1, True, position(1, 1), 5)
    held = state.subscription("a/+")
    held.queue = WaitingQueue()
    held.queue.extend([position(3, 0), position(3, 1)], 1)
    state.own_waiting()["a/+"] = held
    state.inflight[7] = InFlight(position(2, 0), 1, held, NOW)
    state.own_inbound()[9] = position(4, 0)
    view = session_view(state)
    assert [message.position for message in view.messages()] == [
        *(position(3, 0), position(2, 0), position(4, 0)),
        *(position(3, 0), position(3, 1)),
    ]
    answer = json.loads(json.dumps({**plain(view), "actor": "session:1", "of_later": 1}))
    again = session_from(answer)
    assert again == view
    assert again.live == {"actor": "session:1", "of_later": 1}


def test_a_page_of_a_hostile_session_is_harmless() -> None:
    about = {"packet_id": 7, "qos": 2, "retain": True, "sent_ms": NOW - 5000}
    sent = DeliveryView(position(3, 1), filter="f", **about)
    known = replace(sent, topic=HOSTILE, filter=HOSTILE, published_ms=NOW - 360_000)
    inbound = InboundView(position(4, 0), "t", published_ms=NOW - 2000, packet_id=9)
    view = session_row_of(
        HOSTILE,
        user=HOSTILE,
        queued=1,
        queued_bytes=5,
        oldest=MessageView(position(2, 0), HOSTILE, published_ms=NOW - 3 * 3_600_000),
        will=WillView(HOSTILE, 1, retain=False, delay=0, position=position(1, 1)),
        subscriptions=Part(2, []),
        in_flight=Part(1, [known]),
        releasing=Part(1, [sent]),
        inbound=Part(1, [inbound]),
    )
    lines = list(session_lines(view, "9.0", NOW))
    assert all(line.isprintable() for line in lines)
    shown = text.name(HOSTILE)
    assert lines[0] == f"session {shown} as of 9.0"
    assert lines[2] == f"  persistent session, user {shown}, does not expire"
    assert lines[4] == "    and 2 more (--full shows all)"
    assert lines[6] == (
        f"    packet 7      message 3.1 {shown}, QoS 2 retained, for {shown}, "
        "published 6 min ago, last sent 5 s ago"
    )
    assert lines[8] == "    packet 7      message 3.1, QoS 2 retained, for f, last sent 5 s ago"
    assert lines[10] == "    packet 9      message 4.0 t, waiting for 2 s"
    oldest = f"message 2.0 {shown}, waiting for 3 h"
    assert lines[11] == f"  queued: 1 message, 5 B; the oldest: {oldest}"
    assert lines[-1] == f"  will {shown} QoS 1 (position 1.1)"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"connected": True, "expiry": 60}, "  persistent session, session expiry 60 s"),
        ({"connected": True, "expiry": 0xFFFFFFFF}, "  persistent session, session expiry never"),
        ({"connected": True, "expiry": None}, "  persistent session"),
        ({"connected": False, "expiry": 60}, "  persistent session, does not expire"),
        ({"connected": True, "clean": True, "expiry": 0}, "  clean session: it ends with"),
        (
            {"connected": True, "will": WillView("w", 1, True, 5, position(1, 1))},
            "  will w QoS 1 retained, 5 s after the connection ends (position 1.1)",
        ),
    ],
)
def test_a_session_page_has_expiry_and_will_delay(changed: dict[str, Any], said: str) -> None:
    assert any(line.startswith(said) for line in session_lines(session_row_of(**changed), 9, NOW))


def test_a_page_of_a_shared_subscription_names_its_members() -> None:
    held = SubscriptionView("t", 2, 0x1C, 7, True, 1, 8, 0, 0)
    view = session_row_of(
        "$share/g/t",
        packet_maximum=100,
        receive_maximum=5,
        members=Part(1, [MemberView("ann", True, 1, 1, 8)]),
        subscriptions=Part(1, [held]),
    )
    assert list(session_lines(view, "9.0", NOW))[1:] == [
        "  shared subscription of 1 member",
        "    ann  connected, QoS 1, 1 of 8 in flight",
        "  accepts at most 5 unfinished deliveries and packets of 100 B",
        "  subscriptions: 1",
        (
            "    t  QoS 2 no local retain as published retained if new, identifier 7, "
            "1 of 8 in flight"
        ),
    ]


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ({}, "  QoS 0"),
        ({"outstanding": 2}, "  QoS 0, 2 of 8 in flight"),
        ({"qos": 1}, "  QoS 1, 0 of 8 in flight, nothing queued"),
        ({"qos": 1, "queued": 2}, "  QoS 1, 0 of 8 in flight, 2 queued (5 B)"),
    ],
)
def test_a_subscription_at_qos_0_has_no_window(about: dict[str, Any], said: str) -> None:
    found = {"session": "c", "filter": "f", "matched": 0, "replayed": 0, "qos": 0, "window": 8}
    found |= {"outstanding": 0, "queued": 0, "queued_bytes": 5, **about}
    assert list(subscription_lines(found))[1] == said


def test_rates_are_of_one_connection() -> None:
    before = {"id": "connection:1", "messages_in": 5, "messages_out": 0, "bytes_in": 0}
    before["bytes_out"] = 100
    after = {**before, "messages_in": 15, "bytes_out": 1100}
    assert connection_rates(before, after, 0.5) == {
        "messages_in_per_s": 20.0,
        "messages_out_per_s": 0.0,
        "bytes_in_per_s": 0.0,
        "bytes_out_per_s": 2000.0,
    }
    assert connection_rates(before, {**after, "id": "connection:2"}, 0.5) is None
    assert connection_rates(None, after, 0.5) is None


def test_receivers_are_summed_up() -> None:
    rows = [{"why": "sent"}, {"why": "sent"}, {"why": "queued"}, {"why": "overlapped"}]
    lines = outcome_lines(HOSTILE, rows, {"position": position(4, 2), "qos": 1, "size": 2048})
    assert all(line.isprintable() for line in lines)
    assert lines[0].endswith(", a message at QoS 1 now: sent to 2 clients, queued for 1")
    assert lines[1].startswith("retained: message 4.2, QoS 1, 2.0 KiB")


def test_the_operator_is_the_user_at_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert bulk_change.operator_name().count("@") == 1
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000)
    assert bulk_change.operator_name().startswith("4000000000@")


def test_the_subjects_are_those_of_the_service() -> None:
    assert (broker_client.SERVICE, broker_client.SUBJECTS) == ("foldmq", "foldmq.inspect")
