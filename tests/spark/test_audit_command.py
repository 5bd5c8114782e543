"""``foldmq spark audit`` of a log that breaks a promise, in text and in JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from e2e.tools import HOSTILE_ID, run_here
from harness.nats import PASSWORD, USER

from eventstore.format import Acked, BrokerStarted, SessionOpened

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.logs import LogBuilder
    from harness.nats import Nats
    from pyspark.sql import SparkSession


def test_audit_of_a_log_that_breaks_a_promise(
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
