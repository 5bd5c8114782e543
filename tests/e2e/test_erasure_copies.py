"""foldmq erase where there is more than one log: several processes, and a copy as another node."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest
from harness import forkserver
from harness.broker import Broker, environment
from harness.brokerprocesses import client_of, processes
from harness.fixtures import Clients
from harness.packets import Publish, Will
from harness.rawclient import RawClient
from harness.waiting import until

from e2e.test_erasure import ANNA, ERASED, KEPT, PLAIN, names_in, play, readable_in
from e2e.tools import refused, run

pytestmark = pytest.mark.timeout(300)
ALICE = "home/alice/#"
ALICE_PHONE = "phone-älice-7f3a-"


def run_anyhow(*arguments: str) -> str:
    """The output of a command that may lack the answer of a log."""
    _, out, err = forkserver.run(arguments, environment(), 90.0)
    return (out + err).decode()


@pytest.mark.parametrize("killed", [False, True])
def test_all_processes_erase(tmp_path: Path, *, killed: bool) -> None:
    keys = [tmp_path / "keys-p0", tmp_path / "keys-p1"]
    settings = ["--personal-topics", "home/+/#", "--personal-key-file", str(tmp_path / "keys")]
    with Broker(tmp_path, args=["--processes", "2", *settings], forked=True) as broker:
        data = ("--data-dir", str(broker.data_dir))
        readers = [client_of(0, "reader"), client_of(1, "reader")]
        with contextlib.closing(Clients("127.0.0.1", broker.port)) as clients:
            for name in readers:
                reader = clients.connect(name, clean=False)
                reader.subscribe(("home/#", 1), ("news", 1))
                reader.disconnect()
        play(broker)
        assert readable_in(broker.data_dir) == {PLAIN}
        before = ("--before", "now", "--yes")
        remaining = refused("erase", "--topic", ALICE, *before, *data, code=1)
        assert "from before that time remain, in periods that end by" in remaining
        if killed:
            os.kill(processes(broker)[1], signal.SIGKILL)
        if not killed:
            assert "erased in all logs" in run("erase", "--topic", ALICE, "--yes", *data).out
        else:
            assert "erased in all logs" in run_anyhow("erase", "--topic", ALICE, "--yes", *data)
            broker.kill_all()
            broker.start()

        def followed() -> bool:
            events = run_anyhow("log", "--type", "ErasureRequested", *data)
            return "as in another log" in events

        until(followed, "the other log")
        listed = run("erase", "--list", "--json", *data).objects
        assert sorted(one["log"][-2:] for one in listed) == ["p0", "p1"]
        assert f"{listed[1]['log']} " in run("erase", "--list", *data).out
        missing = refused("erase", "--topic", ALICE, "--yes", *data, code=1)
        assert "no topic with sealed contents matches" in missing
        with contextlib.closing(Clients("127.0.0.1", broker.port)) as clients:
            for name in readers:
                reader = clients.connect(name, clean=False, session_present=True)
                texts: set[str] = set()

                def all_came(reader: RawClient = reader, texts: set[str] = texts) -> bool:
                    packets = reader.receive_all()
                    texts.update(
                        each.payload.decode() for each in packets if isinstance(each, Publish)
                    )
                    return texts >= {KEPT, PLAIN}

                until(all_came, "what is not erased")
                assert texts == {KEPT, PLAIN}
        assert "intact" in run("log", "verify", *data).out
        assert "kept:" in run("audit", *data).out
        broker.stop()
        assert readable_in(broker.data_dir, *keys) == {PLAIN}
        assert not any(text in broker.log for text in ERASED)


@pytest.mark.parametrize("killed", [False, True])
def test_all_processes_erase_names(tmp_path: Path, *, killed: bool) -> None:
    keys = tmp_path / "keys"
    keys.mkdir()
    settings = ["--personal-clients", "phone-*", "--personal-users", "änna*"]
    settings += ["--personal-key-file", str(keys / "keys"), "--processes", "2"]
    phones = [client_of(number, ALICE_PHONE) for number in range(2)]
    with Broker(tmp_path, args=settings, forked=True) as broker:
        data = ("--data-dir", str(broker.data_dir))
        with contextlib.closing(Clients("127.0.0.1", broker.port)) as clients:
            for name in phones:
                last_words = Will("words", b"last", 1)
                client = clients.connect(name, clean=False, username=ANNA, will=last_words)
                client.subscribe(("news", 1))
            rows = run("sessions", "ls", "--json", *data).objects
            assert {(row["session"][0], row["user"][0]) for row in rows} == {("~", "~")}
            for row in rows:  # a token belongs to the log of its session
                assert row["session"] in run("sessions", "show", row["session"], *data).out
            run("backup", str(tmp_path / "early"), *data)
            if killed:
                os.kill(processes(broker)[1], signal.SIGKILL)
                ran = run_anyhow("erase", "--user", ANNA, "--yes", *data)
                assert "erased in " in ran
            else:
                assert run("erase", "--user", ANNA, "--dry-run", *data).out.count("~") >= 2
                ran = run("erase", "--user", ANNA, "--yes", *data).out
                assert ran.count("erased in ") == 2

            def erased() -> bool:
                listed = run_anyhow("erase", "--list", "--json", *data)
                return listed.count('"topics":["user ~') == listed.count('"done":"2') == 2

            until(erased, "both logs")
            assert "has no token" in refused("erase", "--user", ANNA, "--yes", *data, code=2)
        with contextlib.closing(Clients("127.0.0.1", broker.port)) as clients:
            for name in phones:
                clients.connect(name, clean=False, username=ANNA, session_present=False)
        ran = run("erase", "--client", phones[1], "--yes", *data)
        assert "-p1: client ~" in ran.out
        for name in (ANNA, *phones):
            places = ("--in", str(keys), "--in", str(tmp_path / "early"))
            run("erase", "--check", name, *places, *data)
        assert "intact" in run("log", "verify", *data).out
        assert "equal" in run("verify", *data).out
        assert "kept:" in run("audit", *data).out
        run("log", "index", *data)
        broker.stop()
        run("backup", str(tmp_path / "backup"), *data)
        searched = (broker.data_dir, keys, tmp_path / "early", tmp_path / "backup")
        assert names_in(*searched, names=(ALICE_PHONE, ANNA)) == set()
        assert ALICE_PHONE not in broker.log
        assert ANNA not in broker.log


def test_a_copy_as_another_node_has_keys_of_its_own(tmp_path: Path) -> None:
    keys, copied = tmp_path / "keys", tmp_path / "copied"
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    settings = ["--personal-topics", "home/+/#", "--personal-key-file"]
    with (
        Broker(first, args=[*settings, str(keys)], forked=True) as broker,
        contextlib.ExitStack() as stack,
    ):
        data = ("--data-dir", str(broker.data_dir))
        play(broker)
        run("backup", str(tmp_path / "backup"), *data)
        copy = Broker(second, args=[*settings, str(keys)], forked=True)
        restore = ("restore", str(tmp_path / "backup"), "--data-dir", str(copy.data_dir))
        lacking = refused(*restore, "--personal-key-file", str(keys), code=2)
        assert "--new-personal-key-file and --new-node are needed together" in lacking
        files = ("--personal-key-file", str(keys), "--new-personal-key-file", str(copied))
        run(*restore, "--new-node", *files)
        off = ("--metrics", "off", "--web", "off")
        wrong = refused("serve", "--data-dir", str(copy.data_dir), *copy.args, *off, code=78)
        assert "is used" in wrong or "another broker uses it" in wrong
        copy.args = [*settings, str(copied)]
        stack.enter_context(copy)
        there = ("--data-dir", str(copy.data_dir))
        assert ERASED[0] in run("retained", "get", "home/alice/kept", *there).out
        assert "erased" in run("erase", "--topic", ALICE, "--yes", *there).out
        assert ERASED[0] in run("retained", "get", "home/alice/kept", *data).out
        copy.stop()
        assert "intact" in run("log", "verify", *there).out
        assert readable_in(copy.data_dir, copied) == {PLAIN}
