"""The tables of `foldmq spark rebuild`, for rows in Spark's form."""

import io

import pytest
from pyspark.sql import Row

from cli.common.tables import Table
from cli.spark.rebuild import _VIEWS

WILL = Row(node="n", session="s", topic="w", qos=1, retain=False, ref=5, delay=None, size=3)
MESSAGE = Row(node="n", topic="t", qos=1, ref=2 << 20)


def printed(what: str, row: Row) -> str:
    out = io.StringIO()
    table = Table(_VIEWS[what].columns, out)
    table.add(row)
    table.close()
    return out.getvalue().splitlines()[-1]


@pytest.mark.parametrize(
    ("payload", "shown"), [(b"gone\x1b", r'"gone\u001b"'), (b"", '""'), (None, "-")]
)
def test_payloads_that_are_not_known_are_a_dash(payload: bytes | None, shown: str) -> None:
    assert printed("wills", Row(**WILL.asDict(), payload=payload)).split()[-1] == shown


def test_a_size_that_is_not_known_is_a_dash() -> None:
    line = printed("retained", Row(**MESSAGE.asDict(), size=None, payload=None))
    assert line.split()[-2:] == ["-", "-"]
