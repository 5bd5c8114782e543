"""``foldmq spark`` as a user runs it: real brokers, a real Spark, exit codes, remaining files."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.broker import Broker, environment, families, foldmq, wait_until_gone
from harness.fixtures import Clients
from harness.logs import LogBuilder
from harness.nats import PASSWORD, USER, Nats
from harness.spark_plans import INTERPRETED
from harness.waiting import until

from e2e.log_scenarios import play
from e2e.tools import refused
from eventstore.format.events import Acked, SessionOpened
from eventstore.format.node_events import (
    BrokerStarted,
    CheckpointBegun,
    CheckpointCompleted,
    LogCut,
)

pytestmark = pytest.mark.timeout(600)

SPARK = ("--master", "local[2]", "--memory", "700m")
INTERPRETED_FLAGS = [
    part for name, value in INTERPRETED.items() for part in ("--conf", f"{name}={value}")
]
SECONDS = 400.0
"""A machine may be busy; nothing waits for this."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with the traffic of the tests of the log tools."""
    config = "max_queued_messages = 3\n"
    with Broker(tmp_path_factory.mktemp("spark"), config=config, forked=True) as made:
        with contextlib.closing(Clients("127.0.0.1", made.port)) as clients:
            play(clients)
        yield made


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nats]:
    server = Nats(tmp_path_factory.mktemp("nats"), sync_interval="2m")
    server.start()
    yield server
    server.kill()


@pytest.fixture
def at(nats: Nats) -> tuple[str, ...]:
    """The flags that name the server."""
    return "--nats-url", nats.url, "--nats-user", USER, "--nats-password", PASSWORD


class Descendants(threading.Thread):
    """Watches a process: what was below it, and what others on the machine could see of that."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pids: set[int] = set()
        self.seen: set[str] = set()
        self._pid = pid
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(0.05):
            self._look(self._pid, families())

    def _look(self, pid: int, processes: dict[int, list[int]]) -> None:
        for child in processes.get(pid, ()):
            self.pids.add(child)
            with contextlib.suppress(OSError):
                self.seen.add(Path(f"/proc/{child}/cmdline").read_text(errors="replace"))
                self.seen.add(Path(f"/proc/{child}/environ").read_text(errors="replace"))
            self._look(child, processes)

    @property
    def java(self) -> bool:
        return any("org.apache.spark.deploy.SparkSubmit" in line for line in self.seen)

    def stop(self) -> None:
        self._ended.set()
        self.join()


@contextlib.contextmanager
def started(*arguments: str, tmp: Path) -> Iterator[tuple[subprocess.Popen[str], Descendants]]:
    """A foldmq of its own, and all below it; its temporary files lie in `tmp`."""
    process = subprocess.Popen(
        [foldmq(), *arguments],
        env={**environment(), "TMPDIR": str(tmp)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    watch = Descendants(process.pid)
    watch.start()
    try:
        yield process, watch
    finally:
        process.kill()
        process.wait()
        watch.stop()


def left_behind(watch: Descendants, tmp: Path) -> list[object]:
    """Processes that do not end, and files."""
    watch.stop()
    return [pid for pid in watch.pids if not wait_until_gone(pid)] + list(tmp.iterdir())


# ----------------------------------------------------------------------------------- audit


def test_audit_of_a_running_broker(broker: Broker, tmp_path: Path) -> None:
    """Nothing but the report on stdout, nothing on stderr; a small log needs no JVM."""
    tmp, page = tmp_path / "tmp", tmp_path / "report.html"
    tmp.mkdir()
    data = ("--data-dir", str(broker.data_dir))
    with started("spark", "audit", *data, *SPARK, "--html", str(page), tmp=tmp) as (process, watch):
        out, err = process.communicate(timeout=SECONDS)
        assert (process.returncode, err) == (0, ""), out
        assert left_behind(watch, tmp) == []
    assert out.startswith("kept: ")
    assert "compared with broker of " in out
    assert all(line.isprintable() for line in out.split("\n"))
    assert not watch.java
    shown = page.read_text("utf-8")
    assert "<svg" in shown
    assert "<script" not in shown
    assert broker.running


# --------------------------------------------------------------------------------- rebuild


def test_rebuild_beside_a_running_broker(broker: Broker, tmp_path: Path) -> None:
    """Nothing but rows on stdout, nothing on stderr, no password to be seen."""
    data = ("--data-dir", str(broker.data_dir))
    with started("spark", "rebuild", "queues", *data, *SPARK, tmp=tmp_path) as (process, watch):
        out, err = process.communicate(timeout=SECONDS)
        assert (process.returncode, err) == (0, ""), out
        assert left_behind(watch, tmp_path) == []
    assert " as of record " in out
    password = json.loads((broker.data_dir / "nats.credentials").read_text())["password"]
    assert watch.java
    assert not [line for line in watch.seen if password in line]
    assert broker.running


# ---------------------------------------------------------------------------- spark-submit


def test_spark_submit_runs_a_job_unchanged(nats: Nats, tmp_path: Path, at: tuple[str, ...]) -> None:
    """And a damaged record is one line with its position, from executors as well."""
    log = LogBuilder("damaged")
    log.record(BrokerStarted("0.1"), SessionOpened("a", False, False, 4))
    log.record(Acked("a", [7]))
    log.damage(2)
    log.store(nats)
    import cli.spark.spark_submit as entry

    submit = Path(sys.executable).with_name("spark-submit")
    ran = subprocess.run(
        [
            str(submit), "--master", "local[2]", "--driver-memory", "700m",
            "--conf", "spark.ui.enabled=false", *INTERPRETED_FLAGS, str(entry.__file__),
            "rebuild", "sessions", *at, "--node", "damaged",
        ],
        env={**environment(), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )  # fmt: skip
    # spark-submit passes on what Python writes on stderr as stdout, and its own logs as stderr
    (line,) = ran.stdout.splitlines()
    assert line.startswith("foldmq: log FOLDMQ_LOG_damaged: the log is damaged: record 2 has a")
    assert ran.returncode == 65


# ------------------------------------------------------------------------------------- end


def test_ctrl_c_ends_it_and_leaves_nothing(broker: Broker, tmp_path: Path) -> None:
    data = ("--data-dir", str(broker.data_dir))
    with started("spark", "rebuild", "queues", *data, *SPARK, tmp=tmp_path) as (process, watch):
        until(lambda: watch.java or process.poll() is not None, "a JVM", SECONDS)
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=SECONDS)
        assert (process.returncode, out, err) == (130, "", "")
        assert left_behind(watch, tmp_path) == []


# ---------------------------------------------------------------- errors before Spark starts


def test_errors_of_the_log_are_reported_before_spark_starts(
    nats: Nats, at: tuple[str, ...], tmp_path: Path
) -> None:
    cut, later = LogBuilder("cut"), LogBuilder("later")
    cut.record(BrokerStarted("0.1"))
    cut.record(CheckpointBegun(1))
    cut.record(CheckpointCompleted(1, cut.at(2), 0, 0))
    cut.record(LogCut(2, cut_link(cut), cut.time_ms, "keep"))
    cut.store(nats)
    cut.cut(nats, 2)
    later.record(BrokerStarted("0.1"))
    later.store(nats)
    job = ("spark", "rebuild", "sessions")
    wrong = ("--nats-url", nats.url, "--nats-user", USER, "--nats-password", "another")
    assert "credentials" in refused(*job, *wrong, code=69)
    assert "another" not in refused(*job, *wrong, code=69)
    assert "there is no log FOLDMQ_LOG_nobody" in refused(*job, *at, "--node", "nobody", code=66)
    beyond = refused(*job, *at, "--node", "later", "--at", "9", code=2)
    assert "position 9 is beyond the end of the log" in beyond
    assert "the log begins with record 2" in refused(
        *job, *at, "--node", "cut", "--at", "1", code=66
    )
    assert "a position belongs to one log" in refused(*job, *at, "--at", "1", code=2)
    no_broker = refused("spark", "audit", *at, "--node", "later", code=69)
    assert "no broker answers for node later (it is not running, or hangs)" in no_broker
    assert "--no-broker" in no_broker


def cut_link(log: LogBuilder) -> str:
    """The link of the first record, which a cut names."""
    from eventstore.format.records import link_of

    return link_of(log.records[0]).hex()
