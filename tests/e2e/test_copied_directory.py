"""Copies of a data directory: they start, and say what cannot be known about their log."""

import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import pytest
from harness.broker import Broker
from harness.rawclient import ConnectionClosedError, RawClient

from e2e.tools import run
from eventstore.log.watermark import Watermark

pytestmark = pytest.mark.timeout(180)
COPIED = "the broker started on a copy of a data directory"
NO_MARK = "the broker started without a watermark (log.mark)"


def publish_some(broker: Broker, count: int = 10) -> None:
    with RawClient(broker.port) as client:
        assert client.connect("some").code == 0
        for number in range(count):
            client.publish("t", b"%d" % number, 1)
        client.disconnect()


@pytest.fixture
def broker(make_broker: Callable[..., Broker]) -> Broker:
    made = make_broker()
    made.start()
    publish_some(made)
    return made


@pytest.fixture
def loaded(broker: Broker) -> Iterator[Broker]:
    """A broker to which a client publishes without a pause."""
    ending = threading.Event()

    def publish() -> None:
        try:
            with RawClient(broker.port) as client:
                client.connect("load")
                while not ending.is_set():
                    client.publish("load", bytes(2000), 1)
        except ConnectionClosedError:
            return

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield broker
    finally:
        ending.set()
        thread.join()


def tar(source: Path, target: Path) -> None:
    target.mkdir()
    packed = target.with_suffix(".tar")
    # 1: a file changed while it was read
    assert subprocess.run(["tar", "cf", packed, "-C", source, "."], check=False).returncode < 2
    subprocess.run(["tar", "xf", packed, "-C", target], check=True)


def mark_last(source: Path, target: Path) -> None:
    """Copy the mark after everything else, when the log of the original has gone on."""
    shutil.copytree(source, target)
    for _ in range(2):  # the first change may be about records that were copied
        before = (source / "log.mark").read_bytes()
        while (source / "log.mark").read_bytes() == before:
            time.sleep(0.001)
    shutil.copy(source / "log.mark", target)


COPIES: dict[str, Callable[[Path, Path], object]] = {
    "cp": lambda source, target: subprocess.run(["cp", "-a", source, target], check=True),
    "tar": tar,
    "shutil": shutil.copytree,
    "mark last": mark_last,
}


def statements(broker: Broker) -> list[str]:
    """What each command says about the log of a running broker."""
    data = ("--data-dir", str(broker.data_dir))
    status = run("status", *data, "--json").out
    doubts = orjson.loads(status)["log"]["not_proven"]
    found = [one["text"] for one in doubts]
    lacks = any(one["missing"] for one in doubts)
    shown = " ".join(run("status", *data).out.split())
    doctor = " ".join(run("doctor", *data, code=int(lacks)).out.split())
    verified = run("log", "verify", *data).out
    compared = run("verify", *data).out
    for text in found:
        assert text in shown
        assert text in doctor
        assert text in verified
        assert text in compared
    assert compared.count("nothing can be said") == len(found)
    (whole,) = run("log", "verify", *data, "--json").objects
    (equal,) = run("verify", *data, "--json").objects
    assert equal["not_proven"] == whole["not_proven"]
    assert [span["from"] for span in equal["proven"]] == [span["from"] for span in whole["proven"]]
    assert "no problems" not in doctor or not found
    return found


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_of_the_directory_of_a_running_broker_starts(
    loaded: Broker, tmp_path: Path, make_broker: Callable[..., Broker], how: str
) -> None:
    copied = tmp_path / "copied"
    COPIES[how](loaded.data_dir, copied)
    before = run("log", "verify", "--data-dir", str(copied))
    assert before.out.startswith("intact: ")
    assert "this is a copy of a data directory" in before.out
    copy = make_broker()
    copy.data_dir = copied
    copy.start()
    (said,) = statements(copy)
    assert COPIED in said
    if how == "mark last":
        assert " are missing" in said
    publish_some(copy)
    copy.kill_all()
    copy.start()
    assert statements(copy) == [said], "the next start of the copy adds nothing"
    copy.stop()


def test_an_older_copy_in_the_place_of_the_original(broker: Broker, tmp_path: Path) -> None:
    broker.stop()
    shutil.copytree(broker.data_dir, tmp_path / "older")
    broker.start()
    publish_some(broker)
    broker.stop()
    shutil.rmtree(broker.data_dir)
    shutil.copytree(tmp_path / "older", broker.data_dir)
    broker.start()
    (said,) = statements(broker)
    assert COPIED in said
    broker.stop()


def test_a_log_without_its_watermark(broker: Broker) -> None:
    broker.kill_all()
    (broker.data_dir / "log.mark").unlink()
    broker.start()
    (said,) = statements(broker)
    assert NO_MARK in said
    broker.stop()


def test_a_copy_without_the_watermark_is_not_said_to_have_crashed(
    loaded: Broker, tmp_path: Path, make_broker: Callable[..., Broker]
) -> None:
    copy = make_broker()
    copy.data_dir = tmp_path / "copied"
    shutil.copytree(loaded.data_dir, copy.data_dir)
    (copy.data_dir / "log.mark").unlink()
    copy.start()
    (said,) = statements(copy)
    assert NO_MARK in said
    data = ("--data-dir", str(copy.data_dir))
    for command in ("status", "doctor", "log"):
        assert "after a crash" not in run(command, *data).out
    assert "wrote on after a copy was made" in copy.log


def test_a_mark_ahead_of_the_log_in_the_original_is_damage(broker: Broker) -> None:
    broker.stop()
    mark = Watermark(broker.data_dir / "log.mark", f"FOLDMQ_LOG_{node(broker)}", beside=True)
    noted = mark.read()
    assert noted is not None
    mark.write(noted[0] + 5, noted[1])
    assert f"the log had reached record {noted[0] + 5}" in broker.refused(65)


def test_a_backup_restored_as_another_node_can_be_audited(broker: Broker, tmp_path: Path) -> None:
    backup, restored = tmp_path / "backup", tmp_path / "restored"
    run("backup", str(backup), "--data-dir", str(broker.data_dir))
    run("restore", str(backup), "--data-dir", str(restored), "--new-node")
    of_original = node(broker)
    broker.stop()
    owner = (restored / "node").read_text().strip()
    found = run("audit", "--no-broker", "--data-dir", str(restored)).out
    verdict, doubt, note, *_ = found.splitlines()
    assert f" entries of {owner}, " in verdict
    assert verdict.endswith("nothing can be said about 1 part")
    assert f"restored from {backup}" in doubt
    assert f"node {owner}: its records are of node {of_original}: the log was restored" in note
    broker.data_dir = restored
    broker.start()
    for stored in ([], ["--stored"]):
        found = run("audit", *stored, "--data-dir", str(restored)).out
        assert found.startswith("kept: ")
        assert "compared with" in found
        assert f" entries of {owner}, " in found
        assert f"are of node {of_original}: the log was restored from a backup" in found


def node(broker: Broker) -> str:
    return (broker.data_dir / "node").read_text().strip()


def test_the_start_of_several_processes_says_it_of_each_log(
    make_broker: Callable[..., Broker],
) -> None:
    broker = make_broker("processes = 2\n")
    broker.start()
    publish_some(broker)
    broker.stop()
    assert "not proven" not in broker.log
    (broker.data_dir / "p1" / "log.mark").unlink()
    broker.start()
    node = (broker.data_dir / "node").read_text().strip()
    (line,) = [one for one in broker.log.splitlines() if "not proven" in one]
    assert f"log {node}-p1: nothing can be said about" in line
    assert NO_MARK in line
    shown = " ".join(run("status", "--data-dir", str(broker.data_dir)).out.split())
    assert f"not proven log {node}-p1: nothing can be said about" in shown
    broker.stop()
