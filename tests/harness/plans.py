"""How the Spark of the tests runs its plans: interpreted, and compiled where that is the point.

Spark writes Java for each plan and compiles it, which takes longer than what there is to do for
the few rows of most tests. What it finds is the same. Users have it compiled: so have the tests
which look at every rule of an audit and at every table that is rebuilt, and each ``foldmq spark``.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


@contextlib.contextmanager
def compiled(spark: SparkSession) -> Iterator[None]:
    """Have Spark compile its plans inside, as it does for users."""
    for name in INTERPRETED:
        spark.conf.unset(name)
    assert spark.conf.get("spark.sql.codegen.wholeStage") == "true"
    try:
        yield
    finally:
        for name, value in INTERPRETED.items():
            spark.conf.set(name, value)
