"""The commands that inspect a running broker, as a user runs them, with real clients."""

import contextlib
import re
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from harness import forkserver
from harness import packets as p
from harness.broker import Broker, environment
from harness.fixtures import Clients
from harness.packets import Pubrec, Pubrel, Will
from harness.waiting import until

from cli.common import text
from e2e.log_scenarios import serving
from e2e.terminal import Terminal
from e2e.tools import HOSTILE_ID, HOSTILE_TOPIC, refused, run

QUIET = ("--metrics", "off", "--web", "off")
LONG_ID = "w" * 60_000
LONG_TOPIC = "x" * 60_000
MARKS = "\u202eabc\u200f<b>"
BIG = bytes(range(256)) * 1200


def play(clients: Clients) -> None:
    """Traffic that the tests know; all but `archive` and `away0` stay connected."""
    archive = clients.connect("archive", clean=False)
    archive.subscribe(("hall/#", 2), ("yard/+", 1))
    archive.disconnect()
    away = clients.connect("away0", clean=False)
    away.subscribe(("hall/door", 0))
    away.disconnect()
    screen = clients.connect("screen", clean=False, keepalive=600)
    screen.subscribe(("hall/+", 2), ("hall/door", 1), ("lamp", 0))
    sensor = clients.connect("sensor", will=Will("wills/sensor", b"gone", 1))
    sensor.publish("hall/door", b"ajar", 1)
    screen.expect_publish("hall/door", b"ajar", 1)
    sensor.publish("hall/window", b"shut", 2)
    got = screen.expect_publish("hall/window", b"shut", 2)
    screen.send(p.pubrec(got.packet_id or 0))
    screen.expect(Pubrel(got.packet_id or 0))
    sensor.publish("lamp", b"on", 1, retain=True)
    screen.expect_publish("lamp", b"on", 0)
    sensor.publish("big", BIG, 1, retain=True)
    sensor.send(p.publish("hall/door", b"unreleased", 2, 77))
    sensor.expect(Pubrec(77))
    evil = clients.connect(HOSTILE_ID, clean=False, will=Will(HOSTILE_TOPIC, b"x"))
    evil.subscribe((HOSTILE_TOPIC, 1))
    evil.publish(HOSTILE_TOPIC, b"x", 1, retain=True)
    evil.expect_publish(HOSTILE_TOPIC, b"x", 1)
    long = clients.connect(LONG_ID, clean=False)
    long.subscribe((f"{LONG_TOPIC}/#", 1))
    long.publish(f"{LONG_TOPIC}/1", b"long", 1, retain=True)
    clients.connect(MARKS).subscribe(("hall/door/<script>", 0))
    screen.expect_alive()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    directory, config = (
        tmp_path_factory.mktemp("operator"),
        "session_expiry = '7d'\nack_wait = '1h'\n",
    )
    with serving(directory, *QUIET, play=play, config=config) as (broker, _):
        # A second later the actors of those that left end: lists stay the same from then on.
        until(lambda: _offline_are_frozen(broker), "sessions without an actor")
        yield broker


def _offline_are_frozen(broker: Broker) -> bool:
    found = rows(("--data-dir", str(broker.data_dir)), "actors", "ls", "--type", "session")
    return not {row["name"] for row in found} & {"archive", "away0"}


@pytest.fixture
def data(running: Broker) -> tuple[str, str]:
    return "--data-dir", str(running.data_dir)


def rows(data: tuple[str, str], *command: str) -> list[dict[str, Any]]:
    return run(*command, *data, "--json").objects


# ------------------------------------------------------------------------------- actors ls


def test_actors_are_listed(data: tuple[str, str]) -> None:
    found = rows(data, "actors", "ls")
    kinds = {row["type"] for row in found}
    assert kinds >= {"broker", "inspector", "session", "connection", "subscription"}
    (screen,) = [row for row in found if (row["type"], row["name"]) == ("session", "screen")]
    assert screen["state"] == "connected"
    assert screen["handled"] > 0
    assert screen["busy_us"] > 0
    assert screen["high_water"] >= 1
    now = time.time() * 1000
    last = text.iso(round(now - 600_000)), text.iso(round(now + 1000))
    assert last[0] < screen["last_active_at"] <= last[1]
    table = run("actors", "ls", "--client", "screen", *data)
    assert table.lines[0].split() == [
        *("TYPE:ID", "STATE", "MAILBOX", "HANDLED", "IDLE", "BUSY", "LOAD", "CLIENT", "NAME"),
    ]
    of_screen = [row for row in found if row["client"] == "screen"]
    assert len(table.lines) == len(of_screen) + 1
    (line,) = [line for line in table.lines if line.startswith(screen["id"] + " ")]
    assert re.fullmatch(rf"{screen['id']} +connected +\d+/\d+ .* +- +screen", line)


# ----------------------------------------------------------------------------- actors tree


def test_the_tree_shows_supervision(data: tuple[str, str]) -> None:
    tree = run("actors", "tree", *data, "--children", "100").lines
    assert re.match(r"broker:\d+  \S+  running, \d+ handled", tree[0])
    at = next(number for number, line in enumerate(tree) if re.search(r"session:\d+  screen", line))
    assert tree[at].startswith("├─ ")
    below = tree[at + 1 : at + 4]
    assert [re.search(r"subscription:\d+  (\S+)", line)[1] for line in below] == [  # type: ignore[index]
        "hall/+",
        "hall/door",
        "lamp",
    ]
    assert below[0].startswith("│  ├─ ")
    assert below[2].startswith("│  └─ ")
    assert any(re.search(r"connection:\d+  screen  127\.0\.0\.1:\d+  open", one) for one in tree)


def test_the_tree_as_json(data: tuple[str, str]) -> None:
    ((broker,),) = rows(data, "actors", "tree")
    assert broker["type"] == "broker"
    (screen,) = [one for one in broker["children"] if one["name"] == "screen"]
    assert [one["name"] for one in screen["children"]] == ["hall/+", "hall/door", "lamp"]


# ------------------------------------------------------------------------ show of a session


def test_a_session_is_shown_in_full(data: tuple[str, str]) -> None:
    out = run("actors", "show", "screen", *data).out
    assert re.match(r"session screen \(session:\d+\) as of \d+\.\d+\n", out)
    for pattern in (
        r"  connected for .+ from 127\.0\.0\.1:\d+ \(connection:\d+\)",
        r"  MQTT 3\.1\.1, keep alive 600 s",
        r"  in  [\d.,]+ messages/s, [\d.]+ K?i?B/s; 0 messages, [\d.]+ K?i?B in all",
        r"  out [\d.,]+ messages/s, [\d.]+ K?i?B/s; [3-9] messages, [\d.]+ K?i?B in all",
        r"  persistent session",
        r"  subscriptions: 3",
        r"    hall/\+  QoS 2, 2 of 1,024 in flight",
        r"    lamp  QoS 0",
        r"  in flight, not acknowledged: 1",
        (
            r"    packet 1      message \d+\.\d+ hall/door, \d+ B, QoS 1, for hall/\+, "
            r"published \d.* ago, last sent \d.* ago"
        ),
        r"  PUBREC received, waiting for PUBCOMP: 1",
        (
            r"    packet 2      message \d+\.\d+ hall/window, \d+ B, QoS 2, for hall/\+, "
            r"published \d.* ago, last sent \d.* ago"
        ),
        r"    session:\d+  connected, \d+ handled, mailbox \d+/\d+, idle .+, busy .+",
        r"    subscription:\d+  running, .+",
    ):
        assert re.search(f"^{pattern}$", out, re.MULTILINE), (pattern, out)
    out = run("sessions", "show", "archive", *data).out
    assert re.search(r"^  offline since [\d :.-]+ \(.+\)$", out, re.MULTILINE)
    assert re.search(r"^  persistent session, expires [\d :.-]+ \(in .+\)$", out, re.MULTILINE)
    assert re.search(
        r"^  queued: 2 messages, \d+ B; the oldest: message \S+ hall/door.*, waiting for \d.*$",
        out,
        re.MULTILINE,
    )
    out = run("sessions", "show", "sensor", *data).out
    assert "  clean session: it ends with its connection\n" in out
    assert re.search(
        r"^    packet 77     message \S+ hall/door.*, waiting for \d.*$", out, re.MULTILINE
    )
    assert re.search(r"^  will wills/sensor QoS 1 \(position \S+\)$", out, re.MULTILINE)


def test_a_session_as_json(data: tuple[str, str]) -> None:
    (screen,) = rows(data, "sessions", "show", "screen")
    assert (screen["session"], screen["connected"], screen["clean"]) == ("screen", True, False)
    assert [one["filter"] for one in screen["subscriptions"]["rows"]] == [
        *("hall/+", "hall/door", "lamp"),
    ]
    (sent,) = screen["in_flight"]["rows"]
    assert (sent["packet_id"], sent["topic"], sent["filter"]) == (1, "hall/door", "hall/+")
    assert screen["releasing"]["total"] == 1
    assert screen["connection"]["keep_alive"] == 600
    assert set(screen["rates"]) == {
        *("messages_in_per_s", "messages_out_per_s", "bytes_in_per_s", "bytes_out_per_s"),
    }
    (message,) = run("why", *data, "--position", sent["position"], "--json").objects
    assert message["topic"] == "hall/door"
    events = run("log", *data, "--json", "--from", sent["position"], "--type", "MessagePublished")
    assert events.objects[0]["position"] == sent["position"]
    assert events.objects[0]["time"] == sent["published_at"]
    assert sent["published_at"] <= sent["sent_at"]
    (then,) = run(
        "replay", *data, "--at", screen["position"], "--session", "screen", "--json"
    ).objects
    assert then["session"] == "screen"
    (archive,) = rows(data, "sessions", "show", "archive")
    assert archive["connection"] is archive["rates"] is None
    assert archive["oldest"]["topic"] == "hall/door"
    assert archive["oldest"]["published_at"] <= sent["published_at"]


def test_other_actors_are_shown(data: tuple[str, str]) -> None:
    of_screen = {row["name"]: row["id"] for row in rows(data, "actors", "ls", "--client", "screen")}
    out = run("actors", "show", of_screen["hall/+"], *data).out
    assert "  of screen, filter hall/+\n  QoS 2, 2 of 1,024 in flight, nothing queued\n" in out
    assert "  2 messages matched, 0 retained ones sent at the beginning\n" in out
    assert (
        "  of screen, filter lamp\n  QoS 0\n" in run("actors", "show", of_screen["lamp"], *data).out
    )
    assert run("actors", "show", of_screen["screen"], *data).out.startswith("session screen (")
    (connection,) = rows(data, "actors", "ls", "--client", "screen", "--type", "connection")
    out = run("actors", "show", connection["id"], *data).out
    assert out.startswith(f"connection {connection['name']}\n")
    assert "  client screen\n  connected for " in out
    out = run("actors", "show", "broker:1", *data).out
    assert "  supervised by no actor\n" in out


def test_topics_come_from_the_log_when_the_broker_has_them_no_more(
    running: Broker, data: tuple[str, str], tmp_path: Any
) -> None:
    with Broker(tmp_path, args=QUIET, forked=True) as broker:
        with contextlib.closing(Clients("127.0.0.1", broker.port)) as clients:
            client = clients.connect("late", clean=False)
            client.subscribe(("a/#", 1), ("b", 1))
            client.publish("a/1", b"1", 1)
            client.expect_publish("a/1", b"1", 1)
            client.close()
            for number in range(5):
                clients.connect(f"pub{number}").publish("b", b"2", 1)
        broker.restart()
        where = ("--data-dir", str(broker.data_dir))
        (late,) = rows(where, "sessions", "show", "late")
        assert late["in_flight"]["rows"][0]["topic"] == "a/1"
        assert late["oldest"] is None or late["oldest"]["topic"] == "b"
        out = run("sessions", "show", "late", *where, "--full").out
        assert re.search(r"packet 1      message \S+ a/1, 1 B, QoS 1", out)


# ----------------------------------------------------------------------------- sessions ls


def test_sessions_are_listed(data: tuple[str, str]) -> None:
    found = {row["session"]: row for row in rows(data, "sessions", "ls")}
    assert found.keys() >= {"archive", "away0", "screen", "sensor", HOSTILE_ID, LONG_ID, MARKS}
    archive = found["archive"]
    assert (archive["connected"], archive["queued"], archive["subscriptions"]) == (False, 2, 2)
    assert datetime.fromisoformat(archive["expires_at"]) - datetime.fromisoformat(
        archive["closed_at"]
    ) == timedelta(days=7)
    assert found["screen"]["in_flight"] == 2
    assert found["screen"]["address"].startswith("127.0.0.1:")
    offline = rows(data, "sessions", "ls", "--offline")
    assert {row["session"] for row in offline} == {"archive", "away0"}
    connected = rows(data, "sessions", "ls", "--connected")
    assert len(connected) + len(offline) == len(found)
    assert rows(data, "sessions", "ls", "--older-than", "1h") == []
    since = rows(data, "sessions", "ls", "--older-than", "0s", "--match", "arch*")
    assert [row["session"] for row in since] == ["archive"]
    top = rows(data, "sessions", "ls", "--sort", "queued", "--limit", "1")
    assert [row["session"] for row in top] == ["archive"]
    by_name = [row["session"] for row in rows(data, "sessions", "ls", "--sort", "client")]
    assert by_name == sorted(by_name)
    first = rows(data, "sessions", "ls", "--sort", "offline")[:2]
    assert [row["session"] for row in first] == ["archive", "away0"]


def test_a_missing_object_is_one_line(data: tuple[str, str]) -> None:
    assert refused("sessions", "show", "nobody", *data, code=1) == "no session 'nobody'"
    assert refused("actors", "show", "nobody", *data, code=1) == "no session 'nobody'"
    for command in ("show", "kick", "restart"):
        said = refused("actors", command, "session:999999", *data, code=1)
        assert said == "no actor session:999999"
        assert refused("actors", command, "nobody", *data, code=1) == "no session 'nobody'"
    assert refused("sessions", "show", "session:9", *data, code=1) == "no session 'session:9'"
    assert "no/topic" in refused("retained", "get", "no/topic", *data, code=1)
    long = refused("sessions", "show", "\x1b" + "n" * 30_000, *data, code=1)
    assert len(long) < 1000


# -------------------------------------------------------------------------------- retained


def test_retained_messages_are_listed(data: tuple[str, str]) -> None:
    found = {row["topic"]: row for row in rows(data, "retained", "ls")}
    assert set(found) == {"lamp", "big", HOSTILE_TOPIC, f"{LONG_TOPIC}/1"}
    assert (found["lamp"]["qos"], found["lamp"]["size"]) == (1, 2)
    (got,) = rows(data, "retained", "get", "lamp")
    assert got["position"] == found["lamp"]["position"]
    assert [row["topic"] for row in rows(data, "retained", "ls", "lamp")] == ["lamp"]
    assert [row["topic"] for row in rows(data, "retained", "ls", "+")] == ["big", "lamp"]
    lines = run("retained", "ls", *data).lines
    (lamp,) = [line for line in lines if line.endswith("lamp")]
    assert re.fullmatch(r" *\d+\.\d+ +1 +2 B +\d+ \w+ ago +sensor +yes +- +- +lamp", lamp)
    assert len(run("retained", "ls", *data, "--limit", "2").lines) == 3


def test_a_retained_message_is_written_as_it_is(running: Broker, data: tuple[str, str]) -> None:
    assert run("retained", "get", "lamp", *data).out == "on\n"
    assert run("retained", "get", "lamp", *data, "-N").out == "on"
    (found,) = rows(data, "retained", "get", "lamp")
    assert (found["payload"], found["qos"], found["size"]) == ("on", 1, 2)
    assert re.fullmatch(r"\d+\.\d+", found["position"])
    assert raw("retained", "get", "big", *data, "-N") == BIG  # too large for an answer
    assert raw("retained", "get", "big", *data) == BIG + b"\n"
    shown = Terminal("retained", "get", "big", *data).ended()
    assert "\\u0007" in shown.text or "\\x07" in shown.text


def raw(*arguments: str) -> bytes:
    code, out, err = forkserver.run(arguments, environment(), 60)
    assert code == 0, err
    return out


# --------------------------------------------------------------------------- subscriptions


# ---------------------------------------------------------------------------- hostile names


def test_hostile_names_are_harmless_everywhere(data: tuple[str, str]) -> None:
    """`run` and `Terminal` fail for whatever could control a terminal or forge a line."""
    for command in (
        ("actors", "ls"),
        ("actors", "tree"),
        ("sessions", "ls"),
        ("sessions", "show", HOSTILE_ID),
        ("sessions", "show", LONG_ID),
        ("sessions", "show", MARKS),
        ("retained", "ls"),
        ("retained", "get", HOSTILE_TOPIC),
        ("subscriptions", "--topic", HOSTILE_TOPIC),
        ("sessions", "rm", HOSTILE_ID, LONG_ID, MARKS, "--dry-run"),
        ("retained", "rm", "#", "--dry-run"),
    ):
        run(*command, *data)
        Terminal(*command, *data).ended()
    out = run("sessions", "show", HOSTILE_ID, *data).out
    assert out.startswith('session "evil\\u001b[2J\\n\\u009b\\u007f id" (session:')
    assert '"ev\\u001b[31mil/\\u202e\\r\\n\\"t\\""' in out
    assert "\\u202eabc\\u200f<b>" in run("sessions", "ls", *data).out
    (found,) = rows(data, "sessions", "show", HOSTILE_ID)
    assert found["session"] == HOSTILE_ID
