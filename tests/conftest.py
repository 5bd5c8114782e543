"""What holds for all tests: none fails because the machine is slow, and there is one Spark."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

# Each test runs a few small jobs: Java would take longer to compile them well than to run them.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Spark on two cores of this machine, for all tests that need it."""
    from spark.session import running_session

    with running_session("local[2]", "1g", {"spark.sql.shuffle.partitions": "2"}) as session:
        yield session
