"""One NATS server for all tests of this folder; the Spark session is that of all tests."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from harness.logs import LogBuilder
from harness.nats import Nats, access

from spark.tables.log import Log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nats]:
    """A NATS server that asks for a user and a password; tests use streams of their own."""
    server = Nats(tmp_path_factory.mktemp("nats"), sync_interval="2m")
    server.start()
    yield server
    server.kill()


@pytest.fixture
def new_log() -> Callable[..., LogBuilder]:
    """Make a log of a node that no other test has; arguments as of LogBuilder but for the node."""

    def make(name: str = "t", **given: int) -> LogBuilder:
        return LogBuilder(f"{name}{next(_numbers)}", **given)

    return make


@pytest.fixture
def opened(spark: SparkSession, nats: Nats) -> Callable[..., Log]:
    """Store logs if they are not yet, and return them as one Log; options as of the source."""

    def open_logs(*logs: LogBuilder, **options: str) -> Log:
        for log in logs:
            log.store(nats)
        streams = ",".join(log.stream for log in logs)
        return Log(spark, {**access(nats), "stream": streams, **options})

    return open_logs
