"""Jobs on a standalone cluster: a master and two workers, processes of this machine."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pyspark
import pytest
from brokenlogs import Story, at, delivered, published
from foldedlogs import random_log
from harness.broker import environment, foldmq, free_port
from harness.nats import PASSWORD, USER, Nats, access
from harness.waiting import until

from spark.jobs.pipeline import SMALL, audit
from spark.report.json_report import audit_json
from spark.runtime.java import find_java
from spark.tables.log import Log

START = 180.0
_DEPLOY = "org.apache.spark.deploy"


@contextlib.contextmanager
def daemon(folder: Path, name: str, *arguments: str) -> Iterator[Path]:
    """Run a daemon of Spark; yields the file with its output."""
    java = find_java()
    program = str(Path(java.home) / "bin" / "java") if java.home else "java"
    jars = Path(pyspark.__file__).parent / "jars"
    kind = name.partition("-")[0]
    said = folder / f"{name}.log"
    here = {
        **environment(),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_HOME": str(jars.parent),
        "SPARK_SCALA_VERSION": "2.13",
        "SPARK_WORKER_DIR": str(folder / name),
    }
    with said.open("wb") as log:
        process = subprocess.Popen(
            [program, "-cp", f"{jars}/*", "-Xmx256m", f"{_DEPLOY}.{kind}", *arguments],
            stdout=log, stderr=log, env=here,
        )  # fmt: skip
    try:
        yield said
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a master with two workers of one core each."""
    folder = tmp_path_factory.mktemp("cluster")
    port = free_port()
    address = f"spark://127.0.0.1:{port}"
    at = ("--host", "127.0.0.1", "--webui-port", "0")
    with contextlib.ExitStack() as running:
        running.enter_context(daemon(folder, "master.Master", *at, "--port", str(port)))
        workers = [
            running.enter_context(
                daemon(folder, f"worker.Worker-{number}", *at, "-c", "1", "-m", "700m", address)
            )
            for number in (1, 2)
        ]
        for said in workers:
            until(lambda said=said: b"registered with master" in said.read_bytes(), "worker", START)
        yield address


def settings_for(events: Path) -> dict[str, str]:
    """The settings of a driver on this machine, which writes its events into a folder."""
    events.mkdir()
    return {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
        "spark.scheduler.minRegisteredResourcesRatio": "1",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{START:.0f}s",
    }


def run(*command: str) -> str:
    """Run a program; returns what it wrote to stdout."""
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def tasks_in(events: Path) -> list[dict[str, Any]]:
    """The tasks of a job, all of which succeeded, on two workers."""
    (file,) = events.iterdir()
    told = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    executors = {one["Executor ID"] for one in told if one["Event"] == "SparkListenerExecutorAdded"}
    tasks = [one for one in told if one["Event"] == "SparkListenerTaskEnd"]
    assert len(executors) == 2
    assert all(one["Task End Reason"]["Reason"] == "Success" for one in tasks)
    return tasks


@pytest.mark.long
@pytest.mark.timeout(900)  # five Javas start
def test_a_job_on_two_workers(nats: Nats, cluster: str, tmp_path: Path) -> None:
    """Both workers work; the number of tasks goes by the size of the log, not by Spark's 200."""
    known = random_log(5, "standalone")[0]
    known.store(nats)
    events = tmp_path / "events"
    settings = settings_for(events)
    out = run(
        foldmq(), "spark", "rebuild", "sessions", "--format", "json", "--memory", "600m",
        "--master", cluster, "--nats-url", nats.url, "--nats-user", USER,
        "--nats-password", PASSWORD, "--node", known.node,
        *(part for one in settings.items() for part in ("--conf", "=".join(one))),
    )  # fmt: skip
    found = {json.loads(line)["session"] for line in out.splitlines()}
    assert found == set(known.fold().sessions)
    assert 0 < len(tasks_in(events)) < 30


@pytest.mark.long
@pytest.mark.timeout(900)
def test_an_audit_on_two_workers(nats: Nats, cluster: str, tmp_path: Path) -> None:
    """It finds what an audit without Spark finds: a broken promise in one log, none in another."""
    sound = Story("standalonekept")(published("t"), delivered(at(2)), payloads=1).keeps()
    story = Story("standalonebroken")(published("t"), delivered(at(2)), payloads=1)
    story(published("t", pid=2), delivered(at(3), pid=1), payloads=1)
    case = story.breaks("packet_id_reuse", at(3, 1))
    for one in (case, sound):
        one.log.store(nats)
    options = {**access(nats), "stream": f"{case.log.stream},{sound.log.stream}"}
    events = tmp_path / "events"
    out = run(
        sys.executable, str(Path(__file__).with_name("clusteraudit.py")), cluster,
        json.dumps(settings_for(events)), json.dumps(options),
    )  # fmt: skip
    found, expected = json.loads(out), audit_json(audit(Log(_no_session, options), local=SMALL))
    for part in ("kept", "notes", "nodes", "rules", "violations", "drops"):
        assert found[part] == json.loads(json.dumps(expected[part])), part
    told = [(one["rule"], one["at"], one["session"]) for one in found["violations"]]
    assert told == case.expected
    assert len({one["Task Info"]["Executor ID"] for one in tasks_in(events)}) == 2


def _no_session() -> NoReturn:
    pytest.fail("a small log is audited without Spark")
