"""The commands that change a running broker: confirmation, the recorded operator, the effect."""

import os
import pwd
import re
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from harness.broker import Broker
from harness.fixtures import Clients
from harness.packets import Will
from harness.waiting import until

from e2e.log_scenarios import serving
from e2e.terminal import Terminal
from e2e.tools import HOSTILE_ID, HOSTILE_TOPIC, Ran, refused, run

ME = f"{pwd.getpwuid(os.getuid()).pw_name}@{socket.gethostname()}"


class Place:
    """A broker of the tests, and what they ask of it."""

    def __init__(self, broker: Broker, clients: Clients) -> None:
        self.clients = clients
        self._where = ("--data-dir", str(broker.data_dir))

    def run(self, *command: str, code: int = 0) -> Ran:
        return run(*command, *self._where, code=code)

    def refused(self, *command: str, code: int) -> str:
        return refused(*command, *self._where, code=code)

    def terminal(self, *command: str, forked: bool = True) -> Terminal:
        return Terminal(*command, *self._where, forked=forked)

    def away(self, *names: str) -> None:
        """Makes persistent sessions that are offline."""
        for name in names:
            client = self.clients.connect(name, clean=False)
            client.subscribe((f"of/{name}", 1))
            client.disconnect()
        until(lambda: set(names) <= self.sessions("--offline"), "the ends of all")

    def sessions(self, *flags: str) -> set[str]:
        return {row["session"] for row in self.run("sessions", "ls", "--json", *flags).objects}

    def retained(self, topic_filter: str = "#") -> set[str]:
        return {row["topic"] for row in self.run("retained", "ls", topic_filter, "--json").objects}

    def state(self) -> tuple[object, object, list[dict[str, Any]]]:
        """All sessions, retained messages, and the last that was recorded."""
        sessions = self.run("sessions", "ls", "--json", "--sort", "client").objects
        for row in sessions:
            # A session that has done nothing for a second is stopped and frozen.
            row.update(actor=None, frozen=None, expires_at=None, rate_in=None, rate_out=None)
        last = self.run("log", "--json", "-n", "1").objects
        return sessions, self.run("retained", "ls", "--json").objects, last

    def acted(self, action: str) -> list[tuple[str, str]]:
        """Target and position of all operators' changes; each event must name the operator."""
        events = self.run("log", "--json", "--type", "OperatorActed").objects
        found = [one for one in events if one["action"] == action]
        assert {one["by"] for one in found} <= {ME}
        return [(one["target"], one["position"]) for one in found]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    directory = tmp_path_factory.mktemp("changes")
    args = ("--metrics", "off", "--web", "off")
    with serving(directory, *args, play=lambda _: None, config="ack_wait = 0\n") as made:
        yield Place(*made)


def test_nothing_is_done_unless_it_is_confirmed(place: Place) -> None:
    place.away("asked1", "asked2")
    before = place.state()
    for command, what in (
        (("sessions", "rm", "asked1", "asked2"), "remove 2 sessions with all they hold"),
        (("sessions", "purge", "--match", "asked*"), "remove 2 sessions with all they hold"),
    ):
        said = place.refused(*command, code=2)  # stdin is no terminal
        assert said == f"no terminal to ask for confirmation: give --yes to {what}"
        for answer in ("n", "", "yep"):
            terminal = place.terminal(*command)
            shown = terminal.until("? [y/N] ")
            assert f"{what[0].upper()}{what[1:]}? [y/N] " in shown
            assert "  asked1  offline since " in shown
            assert "1 subscription" in shown
            terminal.answer(answer)
            assert terminal.ended(1).lines[-1] == "foldmq: nothing was changed"
    terminal = place.terminal("sessions", "rm", "asked1", forked=False)
    terminal.until("[y/N] ")
    terminal.interrupt()
    terminal.ended(130)
    assert place.state() == before
    terminal = place.terminal("sessions", "rm", "asked1", "asked2", forked=False)
    terminal.until("[y/N] ")
    terminal.answer("y")
    assert re.fullmatch(r"removed 2 sessions, recorded at \d+\.\d+", terminal.ended().lines[-1])
    assert not {"asked1", "asked2"} & place.sessions()


def test_a_dry_run_changes_nothing(place: Place) -> None:
    place.away("dry2")
    place.away("dry1")
    online = place.clients.connect("dry-online", clean=False)
    for topic, payload in (("dry/3", b"three"), ("dry/1", b"one"), ("dry/2", b"two")):
        online.publish(topic, payload, 1, retain=True)
    before = place.state()
    ran = place.run("sessions", "rm", "dry1", "dry-online", "--dry-run")
    assert [line.split("  ")[1] for line in ran.lines] == ["dry1", "dry-online"]
    assert ran.err == (
        "foldmq: dry run, nothing was changed: would remove 2 sessions with all they hold\n"
    )
    ran = place.run("sessions", "purge", "--match", "dry*", "--dry-run", "--yes")
    assert [line.split("  ")[1] for line in ran.lines] == ["dry1", "dry2"]
    assert place.run("sessions", "rm", "dry1", "--dry-run").err == (
        "foldmq: dry run, nothing was changed: would remove 1 session with all it holds\n"
    )
    ran = place.run("retained", "rm", "dry/#", "--dry-run")
    assert ran.lines == ["  dry/1  3 B", "  dry/2  3 B", "  dry/3  5 B"]
    assert ran.err == ("foldmq: dry run, nothing was changed: would remove 3 retained messages\n")
    (line,) = place.run("sessions", "kick", "dry-online", "--dry-run").lines
    assert re.fullmatch(r"  dry-online  connected from 127.0.0.1:\d+, persistent session", line)
    (row,) = place.run("actors", "ls", "--match", "dry-online", "--json").objects
    (line,) = place.run("actors", "restart", row["id"], "--dry-run").lines
    assert line == f"  {row['id']}  dry-online, connected"
    (line,) = place.run("actors", "kick", row["id"], "--dry-run").lines
    assert "dry-online" in line
    ran = place.run("actors", "restart", "dry-online", "--dry-run")
    assert ran.lines == [f"  {row['id']}  dry-online, connected"]
    assert ran.err == (
        f"foldmq: dry run, nothing was changed: would restart {row['id']} and disconnect its "
        "client\n"
    )
    assert place.state() == before
    online.expect_alive()


def test_a_kicked_client_is_disconnected_and_its_will_published(place: Place) -> None:
    watcher = place.clients.subscribed("wills/kicked", 1)
    kicked = place.clients.connect("kicked", clean=False, will=Will("wills/kicked", b"gone", 1))
    kicked.subscribe(("kicked/#", 1))
    ran = place.run("sessions", "kick", "kicked", "--yes")
    (found,) = re.findall(r"^kicked 1 client, recorded at (\d+\.\d+)$", ran.out, re.MULTILINE)
    kicked.expect_closed()
    watcher.expect_publish("wills/kicked", b"gone", 1)
    assert place.acted("kick")[-1] == ("kicked", found)
    assert "kicked" in place.sessions("--offline")
    (closed,) = place.run("log", "--json", "--session", "kicked", "--type", "SessionClosed").objects
    assert closed["reason"] == "kicked"
    assert place.refused("sessions", "kick", "kicked", "--yes", code=1) == (
        "kicked is not connected"
    )


def test_actors_are_kicked_by_their_id(place: Place) -> None:
    for kind, clean in (("connection", True), ("session", True), ("client", False)):
        name = f"by-{kind}"
        client = place.clients.connect(name, clean=clean)
        which = name
        if kind != "client":
            (row,) = place.run("actors", "ls", "--client", name, "--type", kind, "--json").objects
            which = row["id"]
        terminal = place.terminal("actors", "kick", which)
        terminal.until("[y/N] ")
        terminal.answer("yes")
        assert terminal.ended().lines[-1].startswith("kicked 1 client, recorded at ")
        client.expect_closed()
        assert place.acted("kick")[-1][0] == name
    held = place.clients.connect("kicks")
    held.subscribe(("kicks/#", 1))
    (inspector,) = place.run("actors", "ls", "--type", "inspector", "--json").objects
    said = place.refused("actors", "kick", inspector["id"], "--yes", code=1)
    assert said == f"{inspector['id']} is neither a session nor a connection"
    (row,) = place.run(
        "actors", "ls", "--type", "subscription", "--match", "kicks/#", "--json"
    ).objects
    said = place.refused("actors", "kick", row["id"], "--yes", code=1)
    assert said == f"{row['id']} is neither a session nor a connection"
    held.expect_alive()
    assert "nobody" in place.refused("actors", "kick", "nobody", "--yes", code=1)


def test_a_connection_without_a_client_is_kicked(place: Place) -> None:
    silent = place.clients.raw()
    found: list[dict[str, Any]] = []

    def seen() -> bool:
        found[:] = place.run("actors", "ls", "--state", "connecting", "--json").objects
        return bool(found)

    until(seen, "its actor")
    place.run("actors", "kick", found[0]["id"], "--yes")
    silent.expect_closed()
    assert place.acted("kick")[-1][0] == found[0]["id"]


def test_a_restarted_session_keeps_its_state(place: Place) -> None:
    client = place.clients.connect("restarted", clean=False)
    client.subscribe(("restarted/#", 1))
    client.publish("restarted/1", b"one", 1)
    client.expect_publish("restarted/1", b"one", 1)
    (row,) = place.run(
        "actors", "ls", "--client", "restarted", "--type", "session", "--json"
    ).objects
    terminal = place.terminal("actors", "restart", row["id"])
    assert "and disconnect its client? [y/N] " in terminal.until("[y/N] ")
    terminal.answer("y")
    assert terminal.ended().lines[-1].startswith("restarted 1 actor, recorded at ")
    client.expect_closed()
    assert place.acted("restart")[-1][0] == row["id"]
    again = place.clients.connect("restarted", clean=False, session_present=True)
    again.expect_publish("restarted/1", b"one", 1, dup=True)
    place.run("actors", "restart", "restarted", "--yes")  # as a client, not by its actor
    again.expect_closed()
    assert len(place.acted("restart")) == 2
    assert "no actor" in place.refused("actors", "restart", "session:999999", "--yes", code=1)
    said = place.refused("actors", "restart", "broker:1", "--yes", code=1)
    assert "cannot be restarted" in said


def test_sessions_are_removed(place: Place) -> None:
    place.away("removed1", "removed2")
    online = place.clients.connect("removed3", clean=False)
    ran = place.run("sessions", "rm", "removed1", "removed3", "nobody", "--yes", code=1)
    (found,) = re.findall(r"^removed 2 sessions, recorded at (\d+\.\d+)$", ran.out, re.MULTILINE)
    assert ran.err == "foldmq: no session 'nobody'\n"
    online.expect_closed()
    assert place.sessions("--match", "removed*") == {"removed2"}
    acted = place.acted("remove_session")
    assert [target for target, _ in acted][-2:] == ["removed1", "removed3"]
    assert acted[-1][1] == found
    (ended,) = place.run(
        "log", "--json", "--session", "removed1", "--type", "SessionExpired"
    ).objects
    assert ended["reason"] == "removed"
    place.clients.connect("removed1", clean=False, session_present=False)


def test_old_sessions_are_purged(place: Place) -> None:
    place.away("purged1", "purged2", "kept")
    place.clients.connect("purged-online", clean=False)
    assert "give --older-than or --match" in place.refused("sessions", "purge", code=2)
    nothing = place.run("sessions", "purge", "--older-than", "1h", "--yes")
    assert nothing.lines == ["no matching offline session"]
    nothing = place.run("sessions", "purge", "--match", "purged-on*", "--yes")
    assert nothing.lines == ["no matching offline session"]
    place.run("sessions", "purge", "--match", "purged*", "--older-than", "0s", "--yes")
    assert place.sessions("--match", "purged*") == {"purged-online"}
    assert "kept" in place.sessions()
    assert [target for target, _ in place.acted("remove_session")][-2:] == ["purged1", "purged2"]


def test_hostile_names_can_be_removed(place: Place) -> None:
    long = "n" * 60_000
    place.away(long)
    client = place.clients.connect(HOSTILE_ID, clean=False)
    client.publish(HOSTILE_TOPIC, b"x", 1, retain=True)
    client.publish("l" * 60_000, b"x", 1, retain=True)
    client.disconnect()
    until(lambda: HOSTILE_ID in place.sessions("--offline"), "its end")
    assert "n" * 100 in place.run("sessions", "rm", long, "--dry-run").out
    terminal = place.terminal("sessions", "purge", "--match", f"[e]{HOSTILE_ID[1:-3]}*")
    assert '"evil\\u001b[2J\\n\\u009b\\u007f id"' in terminal.until("[y/N] ")
    terminal.answer("y")
    terminal.ended()
    place.run("sessions", "rm", long, "--yes")
    assert not {HOSTILE_ID, long} & place.sessions()
    place.run("retained", "rm", HOSTILE_TOPIC, "--yes")
    place.run("retained", "rm", "l" * 60_000, "--yes")
    assert place.acted("clear_retained")[-2][0] == HOSTILE_TOPIC
    place.run("log", "-n", "10")  # which fails for what could control a terminal
