"""``foldmq spark ...`` in the test's own process, with the Spark that its worker has already.

Most of the time of such a command is spent in a JVM of its own. Properties of a process, such as
its end and its remaining files, are tested elsewhere: tests/e2e/test_spark_jobs.py.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from unittest import mock

from cli.logs import next_commands
from cli.main import main
from harness.broker import environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run_with(spark: SparkSession, *arguments: str) -> tuple[int, str, str]:
    """Run the command; returns its exit code, and what it wrote to stdout and stderr."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", newline="") for _ in range(2))

    @contextlib.contextmanager
    def session(*_given: Any) -> Iterator[SparkSession]:
        yield spark

    with (
        mock.patch("cli.spark.job_runner._session", session),
        mock.patch.object(sys, "argv", ["foldmq", *arguments]),
        mock.patch.object(next_commands, "_own", []),
        mock.patch.dict(os.environ, environment(), clear=True),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return code, *(_written(stream) for stream in (out, err))


def _written(stream: io.TextIOWrapper) -> str:
    stream.flush()
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode()
