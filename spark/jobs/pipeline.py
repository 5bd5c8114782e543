"""Audits logs: checks that a broker kept the guarantees of MQTT, and has the state of its log.

``projections.audit.audit_engine`` audits; here its facts are read, in this process or by Spark.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from projections.audit.audit_engine import AuditEngine, Facts
from projections.audit.audit_outcome import Outcome, StateClaim
from projections.audit.broker_logs import BrokerLogs, ComparedLog
from projections.audit.local_facts import LocalFacts, TooManyFacts
from spark.jobs.fact_reading import read_facts
from spark.jobs.log_comparison import compare_in_spark, compare_logs, readable
from spark.runtime.machine import available_memory, usable_cores
from spark.tables.log import Log
from spark.tables.node_names import check_claimed_nodes
from spark.tables.planning import bytes_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


LOCAL_BYTES: Final = 128 << 20
"""Logs up to this size are audited in the memory of the driver, whatever its size."""
_ONE_CORE: Final = 2 << 30
"""Logs up to this size, divided by the number of cores, are audited by one core: with more cores
Spark is done earlier, though it takes more processor time."""
_EXPECTED: Final = 8
"""Bytes of memory for each byte of a log, if its entries are short: ``LocalFacts`` knows more."""


class LocalLimits(NamedTuple):
    """Limits for logs that are audited in the memory of the driver."""

    log_bytes: int = LOCAL_BYTES
    """Maximum size of the log."""
    memory: int | None = None
    """Bytes of memory that a log of more than ``LOCAL_BYTES`` may take; None: any number."""


SMALL: Final = LocalLimits()
"""Those of up to ``LOCAL_BYTES``."""
NOTHING: Final = LocalLimits(0)
"""All logs with records are audited with Spark."""


def limits_here() -> LocalLimits:
    """Return the limits for this machine: an audit may take half of the available memory."""
    available = available_memory()
    if available is None:
        return SMALL
    memory = available // 2
    most = min(memory // _EXPECTED, _ONE_CORE // usable_cores())
    return LocalLimits(max(LOCAL_BYTES, most), memory)


def audit(
    log: Log,
    claims: Iterable[StateClaim] | DataFrame | None = None,
    *,
    cluster: bool = True,
    recovery: bool = False,
    progress: Callable[[str], object] | None = None,
    local: LocalLimits = SMALL,
) -> Outcome:
    """Check all guarantees over whole logs, and claims about their state; return the outcome.

    ``cluster``: several nodes form one cluster, so that a session may belong to one of them at a
    time. ``recovery``: the outcome says what brokers recovered at their last start, and of each log
    only what is wrong from there on; damage is an error. ``progress`` is called with the next step,
    in a few words. Logs within ``local`` are read and audited in the memory of this process,
    without Spark.

    The log is read once, up to its current end; derived data is kept on the disks of Spark until
    this returns. Raises the errors of reading a log (see
    ``spark.runtime.marked_errors.find_error``), and BadOption for claims about nodes whose logs are
    not read.
    """
    began = time.monotonic()
    tell = progress or _silent
    listed_claims = _in_memory(claims)
    if listed_claims is not None:
        check_claimed_nodes({claim.node for claim in listed_claims}, log.bounds())
    tell("reading the log")
    ranges = log.ranges()
    size = sum(map(bytes_of, ranges))

    def compare(brokers: Sequence[BrokerLogs]) -> Iterable[ComparedLog]:
        logs = readable(log)
        sets = [{name: logs[name] for name in broker.names} for broker in brokers]
        if here:
            return [compare_logs(name, broker_logs) for broker_logs in sets for name in broker_logs]
        return compare_in_spark(log.spark, sets)

    def outcome(facts: Facts) -> Outcome:
        engine = AuditEngine(
            listed_claims, cluster=cluster, recovery=recovery, compare=compare, progress=tell
        )
        return replace(engine.outcome(facts), seconds=time.monotonic() - began)

    here = size <= local.log_bytes
    if here:
        memory = None if size <= LOCAL_BYTES else local.memory
        try:
            return outcome(LocalFacts(read_facts(log.options, strict=recovery), memory))
        except TooManyFacts:
            here = False
    with ExitStack() as kept:
        tasks = log.fit_shuffles(ranges)
        from spark.jobs.fact_tables import FactTables, facts_of  # not before: it needs PySpark

        return outcome(FactTables(facts_of(log, strict=recovery), tasks, kept))


def all_here() -> LocalLimits:
    """Return the limits for an audit without Spark, which may take half of the available memory."""
    available = available_memory()
    return LocalLimits(1 << 62, None if available is None else available // 2)


def _silent(_doing: str) -> None:
    """Show nothing."""


def _in_memory(claims: Iterable[StateClaim] | DataFrame | None) -> list[StateClaim] | None:
    """Return claims as a list; None if there are none."""
    if claims is None or isinstance(claims, Iterable):
        return list(claims or ()) or None
    columns = ("where", "node", "kind", "name", "bound", "digest")
    return [StateClaim(*row) for row in claims.select(*columns).collect()]
