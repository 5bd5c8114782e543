"""Runs the log tools as a user does."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness import forkserver
from harness.broker import Broker, environment
from harness.in_process_spark import run_with

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOSTILE_ID = "evil\x1b[2J\n\x9b\x7f id"
HOSTILE_TOPIC = 'ev\x1b[31mil/\u202e\r\n"t"'
HOSTILE_PAYLOAD = b'\x1b]0;x\x07\xff\n"'


_ASK_AGAIN = 75
"""EX_TEMPFAIL"""


@dataclass(frozen=True, slots=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]


def run(*arguments: str, code: int = 0, timeout: float = 60.0) -> Ran:
    """Runs foldmq; the exit code must be `code`, and nothing may break out of its line."""
    found, out, err = forkserver.run(arguments, environment(), timeout)
    return _checked(Ran(found, out.decode(), err.decode()), code)


def run_beside_cuts(*arguments: str) -> Ran:
    """As `run`; repeated when the log was cut while it was read."""
    for _ in range(5):
        found, out, err = forkserver.run(arguments, environment(), 60.0)
        if found != _ASK_AGAIN:
            break
    return _checked(Ran(found, out.decode(), err.decode()), 0)


def run_here(spark: SparkSession, *arguments: str, code: int = 0) -> Ran:
    """As `run`, for a job of Spark: in this process, with the Spark that there is."""
    return _checked(Ran(*run_with(spark, *arguments)), code)


def _checked(ran: Ran, code: int) -> Ran:
    assert ran.code == code, ran
    assert "Traceback" not in ran.err
    assert all(line.isprintable() for line in (ran.out + ran.err).split("\n")), ran
    return ran


def refused(*arguments: str, code: int) -> str:
    """The one line with which foldmq refuses, without ``foldmq: ``; nothing is on stdout."""
    ran = run(*arguments, code=code)
    assert ran.out == ""
    (line,) = ran.err.splitlines()
    return line.removeprefix("foldmq: ")


def flip(broker: Broker, needle: bytes) -> None:
    """Changes one bit of a stored byte string."""
    for block in broker.data_dir.glob("jetstream/**/*.blk"):
        content = bytearray(block.read_bytes())
        at = content.find(needle)
        if at >= 0:
            content[at] ^= 1
            block.write_bytes(content)
            return
    raise AssertionError(f"{needle!r} is not stored")
