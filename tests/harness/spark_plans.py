"""The execution of Spark's plans in tests: interpreted, and compiled where that is the point.

Spark compiles Java code for each plan and replans after each stage, which takes longer than the
work on the few rows of most tests. The results are the same. Compilation and replanning are on for
users, and so for the tests of every audit rule and of every rebuilt table, and for each
``foldmq spark``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}


@contextlib.contextmanager
def compiled(spark: SparkSession) -> Iterator[None]:
    """Have Spark compile its plans inside, as it does for users."""
    for name in INTERPRETED:
        spark.conf.unset(name)
    for name in ("spark.sql.codegen.wholeStage", "spark.sql.adaptive.enabled"):
        assert spark.conf.get(name) == "true"
    try:
        yield
    finally:
        for name, value in INTERPRETED.items():
            spark.conf.set(name, value)
