"""``foldmq audit`` and ``foldmq spark audit`` of a log that breaks a promise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from e2e.tools import HOSTILE_ID, run_here
from harness.logs import LogBuilder
from harness.nats import PASSWORD, USER, Nats

from cli.spark import audit as audit_command
from eventstore.format.events import Acked, SessionOpened
from eventstore.format.node_events import BrokerStarted
from projections.audit.audit_outcome import Outcome
from spark.jobs import pipeline
from spark.jobs.pipeline import SMALL, LocalLimits, audit
from spark.runtime.session import is_submitted
from spark.tables.log import Log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = LocalLimits(1 << 40, 1 << 40)


def test_audit_of_a_log_with_a_violation(
    spark: SparkSession, nats: Nats, new_log: Callable[..., LogBuilder]
) -> None:
    """Exit code 1, with the positions, in JSON; a name that is hostile is harmless."""
    log = new_log("broken")
    log.record(BrokerStarted("0.1"), SessionOpened(HOSTILE_ID, False, False, 4))
    log.record(Acked(HOSTILE_ID, [7]))
    log.store(nats)
    at = ("--nats-url", nats.url, "--nats-user", USER, "--nats-password", PASSWORD)
    ran = run_here(
        spark, "spark", "audit", *at, "--node", log.node, "--no-broker", "--json", code=1
    )
    assert ran.err == ""
    (found,) = ran.objects
    assert not found["kept"]
    (violation,) = found["violations"]
    assert (violation["rule"], violation["position"]) == ("acknowledgement", "2.0")
    assert violation["session"] == HOSTILE_ID


def test_an_audit_needs_neither_spark_nor_arrow(
    nats: Nats, new_log: Callable[..., LogBuilder], tmp_path: Path
) -> None:
    log = new_log("alone")
    log.record(BrokerStarted("0.1"), SessionOpened("s", False, False, 4))
    log.record(Acked("s", [7]))
    log.store(nats)
    for module in ("pyspark", "pyarrow", "numpy", "pandas"):
        (tmp_path / f"{module}.py").write_text("raise ImportError(__name__)")
    at = ("--nats-url", nats.url, "--nats-user", USER, "--nats-password", PASSWORD)
    command = (sys.executable, "-m", "cli.main", "audit", *at, "--node", log.node, "--no-broker")
    place = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ran = subprocess.run((*command, "--json"), env=place, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (1, "")
    (violation,) = json.loads(ran.stdout)["violations"]
    assert (violation["rule"], violation["position"]) == ("acknowledgement", "2.0")


def test_a_log_that_does_not_fit_into_memory_is_left_to_spark(
    spark: SparkSession,
    nats: Nats,
    new_log: Callable[..., LogBuilder],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = new_log("large")
    log.record(BrokerStarted("0.1"))
    log.store(nats)
    monkeypatch.setattr(pipeline, "LOCAL_BYTES", 0)
    monkeypatch.setattr(pipeline, "available_memory", lambda: 1000)
    at = ("--nats-url", nats.url, "--nats-user", USER, "--nats-password", PASSWORD)
    ran = run_here(spark, "audit", *at, "--node", log.node, "--no-broker", code=71)
    assert ran.out == ""
    assert ran.err.endswith("use 'foldmq spark audit'\n")


@pytest.mark.parametrize(
    ("flags", "limits"), [((), HERE), (("--memory", "1g"), HERE), (("--master", "local[2]"), SMALL)]
)
def test_with_a_master_spark_audits_larger_logs(
    spark: SparkSession,
    nats: Nats,
    new_log: Callable[..., LogBuilder],
    monkeypatch: pytest.MonkeyPatch,
    flags: tuple[str, ...],
    limits: LocalLimits,
) -> None:
    assert not is_submitted()
    log = new_log(f"limits{len(flags)}{limits.log_bytes}")
    log.record(BrokerStarted("0.1"))
    log.store(nats)
    seen = []

    def watched(log: Log, *claims: Any, local: LocalLimits, **options: Any) -> Outcome:
        seen.append(local)
        return audit(log, *claims, local=local, **options)

    monkeypatch.setattr(audit_command, "audit", watched)
    monkeypatch.setattr(audit_command, "limits_here", lambda: HERE)
    at = ("--nats-url", nats.url, "--nats-user", USER, "--nats-password", PASSWORD)
    run_here(spark, "spark", "audit", *at, "--node", log.node, "--no-broker", *flags)
    assert seen == [limits]
