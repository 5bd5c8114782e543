"""Commands that are suggested in an incident run as they are pasted.

By ``doctor``, the page, log lines, errors, and the commands that make a data directory.
"""

import contextlib
import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from harness import forkserver
from harness.broker import Broker, environment, free_port
from harness.certs import Authority
from harness.fixtures import Clients, fill
from harness.nats import PASSWORD, USER, Nats
from harness.rawclient import ConnectionClosedError
from harness.waiting import until

from e2e.pasting import pasted, run_as_pasted
from e2e.webclient import served

pytestmark = pytest.mark.timeout(240)
PAGE = "commit_timeout = 2\nweb = '127.0.0.1:0'\n"
FULL = "runs out"
LOST = "lost files of the log"
NOT_SERVED = "does not serve clients fully"


ONE_OR_TWO = [pytest.param(1, marks=pytest.mark.long), 2]
"""How many processes; one alone only in `make drills`."""


def check(broker: Broker, titles: set[str], cwd: Path, **variables: str) -> None:
    """Wait for problems; run what ``doctor`` and the page suggest."""
    where = ["doctor", "--data-dir", str(broker.data_dir), "--json"]
    known: dict[str, str] = {}

    def problems() -> bool:
        _, out, _ = forkserver.run(where, {**environment(), **variables}, 60)
        known.update((one["title"], one["next"]) for one in map(json.loads, out.splitlines()))
        return titles <= known.keys()

    until(problems, f"{titles}")
    suggested = served(broker).good("/problems").suggested
    assert suggested
    run_as_pasted(suggested, cwd)
    run_as_pasted(known.values(), cwd, **variables)


@pytest.mark.parametrize("processes", ONE_OR_TWO)
def test_of_settings_and_certificates(
    make_broker: Callable[..., Broker], tmp_path: Path, processes: int
) -> None:
    certificate = Authority(tmp_path / "certificates").server(expired=True)
    config = (
        f"{PAGE}processes = {processes}\nmax_queued_messages = 1\n"
        f"tls_cert = '{certificate.certificate}'\ntls_key = '{certificate.key}'\n"
        f"[[listen]]\naddress = 'mqtts://127.0.0.1:{free_port()}'\n"
    )
    broker = make_broker()
    config += f"[[listen]]\naddress = '127.0.0.1:{broker.port}'\n"
    broker.configure(config)
    broker.start()
    clients = Clients("127.0.0.1", broker.port)
    for name in ("-v", "it's away"):
        clients.connect(name, clean=False).subscribe(("hall", 1))
    clients.close()
    with_load = Clients("127.0.0.1", broker.port)
    writer = with_load.connect("writer")
    for _ in range(3):
        writer.publish("hall", b"", 1)
    with_load.close()
    broker.configure("keep_bytes = 1\n" + config)
    broker.hangup()
    titles = {"has expired", "did not take its new settings", "loses messages: its queue is full"}
    check(broker, titles, tmp_path)
    broker.stop()


@pytest.mark.parametrize("processes", ONE_OR_TWO)
def test_of_a_store_that_is_gone(
    make_broker: Callable[..., Broker], tmp_path: Path, processes: int
) -> None:
    broker = make_broker(f"{PAGE}processes = {processes}\n")
    broker.start()
    shutil.rmtree(broker.data_dir / "jetstream")
    check(broker, {LOST}, tmp_path)
    broker.kill_all()


@pytest.mark.parametrize("processes", ONE_OR_TWO)
def test_of_a_full_disk(
    make_broker: Callable[..., Broker], tmp_path: Path, small_disk: Path, processes: int
) -> None:
    broker = make_broker(f"{PAGE}processes = {processes}\n")
    broker.data_dir = small_disk / "data"
    broker.start()
    fill(small_disk)
    clients = Clients("127.0.0.1", broker.port)
    with contextlib.suppress(ConnectionClosedError):
        for number in count():  # until the broker refuses them
            clients.connect(f"c{number}", clean=False)
    check(broker, {FULL, NOT_SERVED}, tmp_path)
    broker.kill_all()


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[Nats]:
    server = Nats(tmp_path / "nats server")
    server.folder.mkdir()
    server.start()
    yield server
    server.kill()


def test_of_a_broker_on_a_foreign_server(
    make_broker: Callable[..., Broker], tmp_path: Path, nats: Nats
) -> None:
    secret = tmp_path / "the password"
    secret.write_text(PASSWORD)
    config = (
        f"{PAGE}nats_url = '{nats.url}'\nnats_user = '{USER}'\nbridge = false\n"
        f"nats_password_file = '{secret}'\n"
    )
    broker = make_broker(config)
    broker.start()
    clients = Clients("127.0.0.1", broker.port)
    clients.connect("away", clean=False)
    clients.close()
    broker.configure(config + "keep_bytes = 1\n")
    broker.hangup()
    access = {
        "FOLDMQ_NATS_URL": nats.url, "FOLDMQ_NATS_USER": USER,
        "FOLDMQ_NATS_PASSWORD_FILE": str(secret),
    }  # fmt: skip
    check(broker, {"did not take its new settings"}, tmp_path, **access)
    broker.stop()


@pytest.fixture
def with_log(make_broker: Callable[..., Broker]) -> Broker:
    """A broker that ended, whose directory has a name that a shell would split."""
    broker = make_broker("log_format = 'json'\n")
    broker.data_dir = broker.directory / "the data"
    broker.configure(
        f"log_format = 'json'\ndata_dir = '{broker.data_dir}'\nweb = 'off'\nmetrics = 'off'\n"
        f"[[listen]]\naddress = '127.0.0.1:{broker.port}'\n"
    )
    broker.start()
    clients = Clients("127.0.0.1", broker.port)
    clients.connect("away", clean=False).subscribe(("hall", 1))
    for number in range(20):
        clients.connect(f"c{number}", clean=True).publish("hall", b"on", 1)
    clients.close()
    broker.stop()
    return broker


def damage(broker: Broker, *, also_behind: bool = False) -> None:
    """Change a bit in a record; without the projections the broker has to read it at a start."""
    (block,) = broker.data_dir.glob("jetstream/jetstream/*/streams/FOLDMQ_LOG_*/msgs/1.blk")
    data = bytearray(block.read_bytes())
    data[data.index(b"FMQ", len(data) // 3) + 50] ^= 1
    block.write_bytes(data)
    if also_behind:
        for stream in broker.data_dir.glob("jetstream/jetstream/*/streams/FOLDMQ_STATE_*"):
            shutil.rmtree(stream)


def test_of_a_damaged_record_and_a_clock_that_jumped(with_log: Broker, tmp_path: Path) -> None:
    damage(with_log)
    with_log.configure("max_clock_gap = '1s'\n" + with_log.config_file.read_text())
    time.sleep(1.5)
    with_log.start()
    until(lambda: bool(with_log.told("the log is damaged")), "the damage being found")
    (line,) = with_log.told("the log is damaged")
    assert "damaged: 1 problem" in pasted(line["advice"], tmp_path, 1)
    (line,) = with_log.told("older than max_clock_gap")
    command = re.search(r"if the clock is right, (.*) removes the sessions", line["event"])
    assert command is not None
    assert "0 sessions removed" in pasted(command[1], tmp_path, 0)
    with_log.stop()


def test_of_a_log_on_which_no_broker_starts(with_log: Broker, tmp_path: Path) -> None:
    damage(with_log, also_behind=True)
    command = re.search(r"intact records: (.*) \(of one log", with_log.refused(65))
    assert command is not None
    saved = pasted(command[1], tmp_path, 0)
    where = with_log.directory / "the data.salvaged"
    (shown,) = re.findall(r"says what was given up: (.*)", saved)
    assert "given up by foldmq salvage" in pasted(shown, tmp_path, 0)
    assert f"foldmq serve --data-dir '{where}'\n" in saved


def test_of_a_broker_that_does_not_run(with_log: Broker, tmp_path: Path) -> None:
    config = str(with_log.config_file)
    code, _, err = forkserver.run(["status", "--config", config], environment(), 60)
    assert code == 69
    command = re.search(r"start it with (.*), or give", err.decode())
    assert command is not None
    assert f"--config {config}" in command[1]
    shell = ["/bin/bash", "-c", f"exec {command[1]}"]
    with subprocess.Popen(
        shell, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE
    ) as started:
        assert started.stderr is not None
        assert any(b'"event": "ready"' in line for line in started.stderr)
        started.terminate()


def test_of_a_backup(with_log: Broker, tmp_path: Path) -> None:
    backup, new = tmp_path / "the backup", tmp_path / "the copy"
    forkserver.run(["backup", "--data-dir", str(with_log.data_dir), str(backup)], environment(), 60)
    code, out, err = forkserver.run(
        ["restore", str(backup), "--data-dir", str(new)], environment(), 60
    )
    assert code == 0, err
    assert f"foldmq serve --data-dir '{new}'" in out.decode()
