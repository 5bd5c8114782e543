"""foldmq erase: before and after it, no file of the broker has the contents of personal topics."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from harness.broker import Broker
from harness.fixtures import Clients
from harness.logs import LogBuilder
from harness.nats import PASSWORD, USER, Nats
from harness.packets import Will

from e2e.test_encryption import forms, unpacked
from e2e.tools import refused, run
from eventstore.format.events import MessagePublished
from eventstore.format.node_events import BrokerStopped

ERASED = ("secret-7f3a-retained", "secret-7f3a-queued", "secret-7f3a-will", "secret-7f3a-again")
KEPT, PLAIN = "kept-7f3a-of-bob", "plain-7f3a-for-all"
TOPICS = "home/alice"


def readable_in(*places: Path) -> set[str]:
    """The contents that can be read in files, in any form."""
    found = set()
    for place in places:
        for file in [place] if place.is_file() else place.rglob("*"):
            if file.is_file():
                data = unpacked(file.read_bytes())
                texts = (*ERASED, KEPT, PLAIN)
                found |= {text for text in texts if any(form in data for form in forms(text))}
    return found


def play(broker: Broker) -> None:
    retained, queued, last_words, again = (one.encode() for one in ERASED)
    with contextlib.closing(Clients("127.0.0.1", broker.port)) as clients:
        reader = clients.connect("panel", clean=False)
        reader.subscribe(("home/#", 1), ("news", 1))
        reader.disconnect()
        writer = clients.connect("writer", will=Will(f"{TOPICS}/will", last_words, 1))
        writer.publish(f"{TOPICS}/kept", retained, 1, retain=True)
        for _ in range(300):
            writer.publish(f"{TOPICS}/waiting", queued, 1)
        writer.publish(f"{TOPICS}/waiting", again, 1)
        writer.publish("home/bob/kept", KEPT.encode(), 1, retain=True)
        writer.publish("news", PLAIN.encode(), 1)
        writer.receive_all()


@pytest.mark.parametrize("killed", [False, True])
def test_contents_are_never_in_a_file_and_gone_for_ever(tmp_path: Path, *, killed: bool) -> None:
    keys = tmp_path / "keys"
    settings = ["--personal-topics", "home/+/#", "--personal-key-file", str(keys)]
    with Broker(tmp_path, args=settings, forked=True) as broker:
        data = ("--data-dir", str(broker.data_dir))
        play(broker)
        if killed:
            broker.kill_all()
            broker.start()
        assert readable_in(broker.data_dir) == {PLAIN}
        assert KEPT in run("retained", "get", "home/bob/kept", *data).out
        run("backup", str(tmp_path / "early"), *data)
        assert "no erasure" in run("erase", "--list", *data).err
        searched = run("erase", "--check", PLAIN, *data, code=1).out
        assert "/msgs/" in searched
        assert "UTF-8 (" in searched
        assert "found nowhere\n" in run("erase", "--check", KEPT, *data).out
        assert "dry run" in run("erase", "--topic", "home/alice/#", "--dry-run", *data).err
        assert "3 keys, 1 retained" in run("erase", "--topic", "home/alice/#", "--yes", *data).out
        missing = refused("erase", "--topic", "home/alice/#", "--yes", *data, code=1)
        assert "no topic with sealed contents matches" in missing
        before = ("--topic", "home/bob/#", "--before", "now", "--yes")
        missing = refused("erase", *before, *data, code=1)
        assert "contents of 1 topic from before that time remain, in periods that end by" in missing
        if killed:
            broker.kill_all()
            broker.start()
        with contextlib.closing(Clients("127.0.0.1", broker.port)) as clients:
            reader = clients.connect("panel", clean=False, session_present=True)
            assert reader.expect_publish("home/bob/kept", KEPT.encode(), 1)
            assert reader.expect_publish("news", PLAIN.encode(), 1)
            reader.disconnect()
        (listed,) = run("erase", "--list", "--json", *data).objects
        assert (listed["erasure"], listed["keys"], listed["cause"]) == (1, 3, "request")
        assert (len(listed["topics"]), listed["done"] is not None) == (3, True)
        assert "home/alice/kept" in run("erase", "--list", *data).out
        assert "sealed under key" in run("log", "--payload", *data).out
        assert "intact" in run("log", "verify", *data).out
        assert "equal" in run("verify", *data).out
        assert "kept: 18 guarantees" in run("audit", *data).out
        run("log", "index", *data)
        broker.stop()
        backup = tmp_path / "backup"
        run("backup", str(backup), *data)
        assert readable_in(broker.data_dir, backup, tmp_path / "early", keys) == {PLAIN}
        places = ("--in", str(backup), "--in", str(tmp_path / "early"), "--in", str(keys))
        (checked,) = run("erase", "--check", ERASED[1], *places, "--json", *data).objects
        assert (checked["found"], checked["not_searched"]) == ([], [])
        assert str(backup) in checked["searched"]
        assert "in a record" in run("erase", "--check", TOPICS, *places, *data, code=1).out
        assert not any(text in broker.log for text in ERASED)
        new = tmp_path / "new"
        run("restore", str(tmp_path / "early"), "--data-dir", str(new))
        assert readable_in(new) == {PLAIN}


ALICE, ANNA = "phone-älice-7f3a", "änna-7f3a"


def names_in(*places: Path, names: Iterable[str] = (ALICE, ANNA)) -> set[str]:
    """The names of persons that can be read in files, in any form."""
    return {
        name
        for place in places
        for file in ([place] if place.is_file() else place.rglob("*"))
        if file.is_file()
        for name in names
        if any(
            form in unpacked(file.read_bytes())
            for form in (*forms(name), json.dumps(name)[1:-1].encode())
        )
    }


def test_names_are_never_in_a_file_and_gone_for_ever(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    settings = [
        *("--personal-clients", "phone-*", "--personal-users", "änna*"),
        *("--personal-key-file", str(keys), "--index-bytes", "1MiB"),
    ]
    with Broker(tmp_path, args=settings, forked=True) as broker:
        data = ("--data-dir", str(broker.data_dir))
        with contextlib.closing(Clients("127.0.0.1", broker.port)) as clients:
            alice = clients.connect(
                ALICE, clean=False, username=ANNA, will=Will("words", b"last", 1)
            )
            alice.subscribe(("news", 1))
            (listed,) = run("sessions", "ls", "--json", *data).objects
            token = listed["session"]
            assert (token[0], listed["user"][0], len(token)) == ("~", "~", 17)
            assert token in run("erase", "--client", ALICE, "--dry-run", *data).out
            run("backup", str(tmp_path / "early"), *data)
            broker.kill_all()
        broker.start()
        with contextlib.closing(Clients("127.0.0.1", broker.port)) as clients:
            alice = clients.connect(ALICE, clean=False, username=ANNA, session_present=True)
            refused_name = refused("erase", "--client", "phone-bob", "--yes", *data, code=2)
            assert "personal_clients never matched it at a login" in refused_name
            ran = run("erase", "--client", ALICE, "--yes", *data)
            assert f"erased: client {token}, 1 session (erasure 1)" in ran.out
            alice.expect_closed()
        assert "has no token" in refused("erase", "--client", ALICE, "--yes", *data, code=2)
        assert "erased: user ~" in run("erase", "--user", ANNA, "--yes", *data).out
        first, second = run("erase", "--list", "--json", *data).objects
        assert first["topics"] == [f"client {token}"]
        assert (second["keys"], second["done"] is not None) == (1, True)
        run("erase", "--check", ALICE, "--in", str(keys), "--in", str(tmp_path / "early"), *data)
        assert token in run("log", *data).out
        assert "intact" in run("log", "verify", *data).out
        assert "equal" in run("verify", *data).out
        assert "kept: 7 guarantees" in run("audit", *data).out
        run("log", "index", *data)
        broker.stop()
        run("backup", str(tmp_path / "backup"), *data)
        assert names_in(broker.data_dir, keys, tmp_path / "early", tmp_path / "backup") == set()
        assert ALICE not in broker.log
        assert ANNA not in broker.log


def test_what_cannot_be_asked_for_is_one_line(tmp_path: Path) -> None:
    for words, line in (
        ((), "give one of --topic, --client, --user, --list and --check"),
        (
            ("--client", "a", "--user", "b"),
            "give one of --topic, --client, --user, --list and --check",
        ),
        (("--client", "a", "--before", "now"), "--before is for --topic"),
        (("--topic", "a/#", "--in", str(tmp_path)), "--in is for --check"),
        (("--list", "--before", "now"), "--before is for --topic"),
        (("--topic", "a/#", "--json"), "--json is for --list and --check"),
        (("--check", "abc"), "--check: the text needs at least 4 bytes"),
        (("--check", "abcd", "--in", str(tmp_path / "none")), "none: does not exist"),
        (("--check", "abcd", "--in", "s3://b/a"), "--in: buckets cannot be searched"),
        (("--topic", "a/#", "--before", "7.1"), "--before 7.1: must be a time, not a position"),
    ):
        assert line in refused("erase", *words, "--data-dir", str(tmp_path), code=2)
    missing = str(tmp_path / "missing")
    assert "does not exist" in refused("erase", "--check", "abcd", "--data-dir", missing, code=66)


def test_archives_and_the_log_on_another_server_are_searched(tmp_path: Path, nats: Nats) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    arrow = pytest.importorskip("pyarrow")
    log = LogBuilder("n1")
    topics = ["patients/anna-7f3a", *(f"pumps/{number}" for number in range(40))]
    log.record(BrokerStopped())  # the next record has format 2
    log.record(MessagePublished("c", 1, False, topics, [*range(41)], [[1, 41, 1]], 0, 0, 41))
    log.store(nats)
    access = ("--nats-url", nats.url, "--nats-user", USER, "--nats-password", PASSWORD)
    flags = (*access, "--node", "n1", "--data-dir", str(tmp_path / "none"))
    ran = run("erase", "--check", "anna-7f3a", *flags, code=1)
    assert "FOLDMQ_LOG_n1 record 2: UTF-8 in a record (1)" in ran.out
    assert "of its files only the log's records were read" in ran.out
    ran = run("erase", "--check", "nobody-7f3a", *flags, code=74)
    assert "found nowhere that was searched" in ran.out
    archive, data = tmp_path / "archive", tmp_path / "data"
    archive.mkdir()
    data.mkdir()
    table = arrow.table({"seq": [1, 2], "data": log.records})
    parquet.write_table(table, archive / "1.parquet", compression="zstd", use_dictionary=False)
    places = ("--in", str(archive), "--data-dir", str(data))
    assert "in a record (" in run("erase", "--check", "anna-7f3a", *places, code=1).out
    assert "found nowhere\n" in run("erase", "--check", "nobody-7f3a", *places).out
    whole = (archive / "1.parquet").read_bytes()
    (archive / "1.parquet").write_bytes(whole[:100] + bytes(20) + whole[120:-40] + whole[-20:])
    ran = run("erase", "--check", "nobody-7f3a", *places, code=74)
    assert "1.parquet: it is a damaged Parquet file: " in ran.out
