"""``foldmq spark rebuild`` of the log of a broker that was stopped."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from harness.broker import Broker
from harness.fixtures import Clients

from e2e.log_scenarios import play
from e2e.tools import HOSTILE_TOPIC, run, run_here

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)


def test_rebuild_from_the_directory_of_a_broker_that_was_stopped(
    make_broker: Callable[..., Broker], spark: SparkSession
) -> None:
    """Its NATS server is started for that, and ended; the broker starts again."""
    broker = make_broker()
    broker.start()
    data = ("--data-dir", str(broker.data_dir))
    with contextlib.closing(Clients("127.0.0.1", broker.port)) as clients:
        play(clients)
    broker.stop()
    expected = {
        found["topic"]: found["position"]
        for found in run("replay", *data, "--topic", "#", "--json").objects
    }
    ran = run_here(spark, "spark", "rebuild", "retained", *data, "--format", "json")
    assert ran.err == ""
    assert {row["topic"]: row["ref"] for row in ran.objects} == expected
    assert HOSTILE_TOPIC in expected
    assert {row["topic"]: row.get("payload") for row in ran.objects}["lamp"] == "on"
    broker.start()
