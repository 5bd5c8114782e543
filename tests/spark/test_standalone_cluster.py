"""A job on a standalone cluster: a master and two workers, processes of this machine."""

from __future__ import annotations

import contextlib
import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest
from foldedlogs import random_log
from harness.broker import environment, foldmq, free_port
from harness.nats import PASSWORD, USER
from harness.waiting import until

from spark.runtime import find_java

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.nats import Nats

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


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """The address of a master with two workers of one core each."""
    port = free_port()
    address = f"spark://127.0.0.1:{port}"
    at = ("--host", "127.0.0.1", "--webui-port", "0")
    with contextlib.ExitStack() as running:
        running.enter_context(daemon(tmp_path, "master.Master", *at, "--port", str(port)))
        workers = [
            running.enter_context(
                daemon(tmp_path, f"worker.Worker-{number}", *at, "-c", "1", "-m", "700m", address)
            )
            for number in (1, 2)
        ]
        for said in workers:
            until(lambda said=said: b"registered with master" in said.read_bytes(), "worker", START)
        yield address


@pytest.mark.long
@pytest.mark.timeout(900)  # six Javas start
def test_a_job_on_two_workers(nats: Nats, cluster: str, tmp_path: Path) -> None:
    """Both workers work; the number of tasks goes by the size of the log, not by Spark's 200."""
    known = random_log(5, "standalone")[0]
    known.store(nats)
    events = tmp_path / "events"
    events.mkdir()
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
        "spark.scheduler.minRegisteredResourcesRatio": "1",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{START:.0f}s",
    }
    done = subprocess.run(
        [
            foldmq(), "spark", "rebuild", "sessions", "--format", "json", "--memory", "600m",
            "--master", cluster, "--nats-url", nats.url, "--nats-user", USER,
            "--nats-password", PASSWORD, "--node", known.node,
            *(part for one in settings.items() for part in ("--conf", "=".join(one))),
        ],
        env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = {json.loads(line)["session"] for line in done.stdout.splitlines()}
    assert found == set(known.fold().sessions)
    (file,) = events.iterdir()
    told = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    executors = {one["Executor ID"] for one in told if one["Event"] == "SparkListenerExecutorAdded"}
    tasks = [one for one in told if one["Event"] == "SparkListenerTaskEnd"]
    assert len(executors) == 2
    assert 0 < len(tasks) < 30
    assert all(one["Task End Reason"]["Reason"] == "Success" for one in tasks)
