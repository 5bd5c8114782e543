"""Tests of which one is ended in the middle of a call to Spark; run by test_sparklimits.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from harness.sparklimits import _fixtures

from spark.runtime.session import kill_jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.system

asked: list[int] = []


def stand_still(spark: SparkSession) -> None:
    """Make a call to the JVM that does not return."""
    jvm: Any = spark.sparkContext._jvm
    jvm.java.lang.Thread.sleep(3_600_000)


@pytest.fixture(scope="module")
def answer(spark: SparkSession) -> int:
    """Fails once, as a fixture of a module does that meets the limit."""
    asked.append(1)
    if len(asked) == 1:
        stand_still(spark)
    return spark.range(42).count()


@pytest.mark.timeout(3)
def test_a_fixture_is_ended(answer: int) -> None:
    assert answer == 42


def no_java() -> None:
    raise OSError("no Java today")


def test_a_start_fails(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setattr("spark.runtime.jvm.find_java", no_java)
    request.getfixturevalue("answer")


def test_the_fixture_is_created_again(answer: int) -> None:
    assert answer == 42


def test_the_jvm_is_killed(spark: SparkSession) -> None:
    kill_jvm()
    spark.range(1).count()


def test_the_next_test_would_start_another(request: pytest.FixtureRequest) -> None:
    (fixture,) = _fixtures(request.node)
    assert fixture.cached_result is None
