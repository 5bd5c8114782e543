"""``foldmq spark audit`` of a log that breaks a promise, in text and in JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from e2e.tools import HOSTILE_ID, run_here
from harness.nats import PASSWORD, USER

from cli.spark import audit as audit_command
from eventstore.format.events import Acked, SessionOpened
from eventstore.format.node_events import BrokerStarted
from spark.jobs.pipeline import SMALL, LocalLimits, audit
from spark.runtime.session import is_submitted

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.logs import LogBuilder
    from harness.nats import Nats
    from pyspark.sql import SparkSession

    from projections.audit.audit_outcome import Outcome
    from spark.tables.log import Log

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
