"""``foldmq status``, ``doctor`` and ``config check`` against brokers that have problems."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import forkserver
from harness.broker import Broker, environment, foldmq
from harness.fixtures import Clients
from harness.waiting import until

from cli.commands.advice import _KINDS, advise
from cli.commands.refusal_advice import _REFUSALS, advise_on_refusals
from cli.logs.next_commands import SERVER_LOG, NextCommands
from cli.logs.source_flags import SourceFlags
from e2e.pasting import run_as_pasted
from e2e.tools import refused, run


def doctor(broker: Broker, *about: str) -> tuple[int, list[dict[str, Any]]]:
    data = ("--data-dir", str(broker.data_dir))
    code, out, err = forkserver.run(["doctor", *about, *data, "--json"], environment(), 60.0)
    assert err == b""
    return code, [json.loads(line) for line in out.splitlines()]


def test_a_healthy_broker_has_no_problems(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker()
    broker.start()
    data = ("--data-dir", str(broker.data_dir))
    assert doctor(broker) == (0, [])
    assert run("doctor", *data).lines[0].startswith("no problems found: node ")
    lines = run("status", *data).lines
    assert lines[0].startswith("ready: node ")
    (found,) = run("status", *data, "--json").objects
    assert found["ready"] is True


def test_problems_are_found_with_their_clients(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker("max_queued_messages = 2\n")
    broker.start()
    clients = Clients("127.0.0.1", broker.port)
    away, writer = clients.connect("away", clean=False), clients.connect("writer")
    away.subscribe(("hall/#", 1))
    away.disconnect()
    for number in range(3):
        writer.publish("hall/door", b"%d" % number, 1)
    data = ("--data-dir", str(broker.data_dir))
    for _ in range(4):
        clients.connect("twin")
    for _ in range(4):
        clients.connect("flapper").close()
        until(lambda: "flapper" not in run("sessions", "ls", *data).out, "the end of the client")
        clients.connect("cron job").disconnect()
    code, found = doctor(broker)
    assert code == 1
    titles = {one["subject"]: one["title"] for one in found}
    assert titles.keys() == {"away", "twin", "flapper"}
    for name in ("twin", "flapper"):  # present or past: these commands take their time
        assert "again and again" in titles[name]
    (one,) = [one for one in found if one["subject"] == "away"]
    assert (one["severity"], one["title"]) == ("problem", "loses messages: its queue is full")
    assert "1 message" in one["evidence"]
    assert one["next"] == f"{foldmq()} sessions show away --data-dir {broker.data_dir}"
    for one in found:
        _, *words = shlex.split(one["next"])
        run(*words)
    assert [one["subject"] for one in doctor(broker, "away")[1]] == ["away"]
    assert doctor(broker, "writer") == (0, [])
    # of a topic: those of its receivers
    assert [one["subject"] for one in doctor(broker, "hall/door")[1]] == ["away"]
    out = run("doctor", "hall/door", "--data-dir", str(broker.data_dir), code=1).out
    assert "  away: dropped: queue full, 2 (max_queued_messages); offline" in out
    clients.close()


FIELDS: dict[str, Any] = {
    "queue": "queue_messages", "queued": 9, "max_queued": 9, "queued_bytes": 9,
    "max_queued_bytes": 9, "connected": True, "offline_ms": None, "filter": "a", "window": 5,
    "outstanding": 5, "age_ms": 9, "quiet_ms": 9, "silent_ms": 9, "filters": {}, "count": 1,
    "sent_again": True, "by": {"expired": 1}, "what": {"subscribe #": 1}, "takeovers": 3,
    "recent_takeovers": 3, "recent": 3, "hosts": [""], "connects": 3, "failed": 3,
    "last_close": "closed", "unsent": 9, "max_unsent": 9, "address": "", "members": 1,
    "state": "damaged",
}  # fmt: skip
"""The figures of all kinds of problems."""


def test_each_suggested_command_runs_as_pasted(
    make_broker: Callable[..., Broker], tmp_path: Path
) -> None:
    broker = make_broker()
    broker.start()
    clients = Clients("127.0.0.1", broker.port)
    suggested = {find.next for find in _REFUSALS.values() if "{}" not in find.next}
    suggested |= {"nats server report jetstream", SERVER_LOG}
    for client in ("-v", "it's"):
        clients.connect(client, clean=False)
        suggested |= {advise({"client": client, "code": code, **FIELDS}).next for code in _KINDS}
        refusals = [
            {"reason": one, "client": client, "count": 1, "recent": 1, "age_ms": 9}
            for one in _REFUSALS
        ]
        suggested |= {one.next for one in advise_on_refusals(refusals)}
    flags = SourceFlags({"data_dir": broker.data_dir})
    pids = [run("status", "--data-dir", str(broker.data_dir), "--json").objects[0]["pid"]]
    complete = NextCommands(flags, pids, elsewhere=True).complete
    run_as_pasted(map(complete, suggested), tmp_path)
    clients.close()


def test_denials_are_found(make_broker: Callable[..., Broker], tmp_path: Path) -> None:
    rules = tmp_path / "permissions.toml"
    rules.write_text('[[allow]]\nanonymous = true\nboth = ["open/#"]\n')
    broker = make_broker(f'permissions = "{rules}"\nallow_anonymous = true\n')
    broker.start()
    clients = Clients("127.0.0.1", broker.port)
    client = clients.connect("pump")
    client.publish("plant/locked", b"1", 1)
    until(lambda: doctor(broker, "pump")[1] != [], "the denial")
    (one,) = doctor(broker, "pump")[1]
    assert (one["severity"], one["title"]) == ("warning", "is denied what it asks for")
    assert one["evidence"].startswith("publish plant/locked 1 time")
    expected = f"{foldmq()} acl check - pump publish plant/locked --permissions {rules}"
    assert one["next"] == expected
    said = run(*shlex.split(one["next"])[1:], code=1)  # as it is
    assert "no user, client pump: publish plant/locked" in said.out
    assert clients.connect("spy").subscribe(("plant/+", 1)) == (0x80,)
    data = ("--data-dir", str(broker.data_dir))
    lines = run("subscriptions", "--topic", "plant/locked", *data).lines
    assert lines[0].endswith("sent to no client: no subscription matches")
    assert lines[-1] == "spy was denied plant/+ 1 time"
    assert "was denied" not in run("subscriptions", "--topic", "open/x", *data).out
    told = refused("doctor", "plant/locked", *data, code=1)
    assert told.endswith("; spy was denied plant/+ 1 time")
    clients.close()


def test_the_configuration_is_checked_without_a_start(tmp_path: Path) -> None:
    config = tmp_path / "foldmq.toml"
    config.write_text('listen = ["127.0.0.1:0"]\nmax_ack_pending = 7\n')
    lines = run("config", "check", "--config", str(config), "--keep", "1d").lines
    assert lines[0].split() == ["keep", '"1d"', "(--keep)"]
    assert f"max_ack_pending  7  ({config})" in lines
    assert lines[-1].startswith("the configuration is valid for foldmq ")
    assert not (tmp_path / "foldmq-data").exists()
    for place, why in (
        ("/proc/x", "cannot be used"),
        (config, "is a file"),
        (config / "x", "below a"),
    ):
        given = ("--config", str(config), "--data-dir", str(place))
        said = refused("config", "check", *given, code=73)
        assert f"data directory {place}: " in said
        assert why in said
    assert run("config", "check", "--data-dir", str(tmp_path / "a" / "b")).lines
    assert [*tmp_path.iterdir()] == [config]
    config.write_text('permissions = "nothing.toml"\n')
    assert "nothing.toml" in refused("config", "check", "--config", str(config), code=78)
    config.write_text("max_packet_size = 268435460\n")
    said = refused("config", "check", "--config", str(config), code=78)
    assert "exceeds what the log can store: set at most 3" in said
    most = said.rsplit(" ", 1)[1].strip()
    config.write_text(f"max_packet_size = {most}\n")
    assert run("config", "check", "--config", str(config)).lines[-1].startswith("the configuration")
    free = ("--listen", "127.0.0.1:0", "--metrics", "off", "--web", "off")
    serve = ("serve", "--config", str(config), *free, "--data-dir")
    said = refused(*serve, str(tmp_path / "data"), "--max-packet-size", str(int(most) + 1), code=78)
    assert said.rsplit(" ", 1)[1].strip() == most
    config.write_text("max_ack_pendig = 7\n")
    said = refused("config", "check", "--config", str(config), code=78)
    assert 'did you mean "max_ack_pending"?' in said
    config.write_text('nats_url = "nats://u:secret@127.0.0.1"\n')
    assert "secret" not in run("config", "check", "--config", str(config)).out
