"""The flags of every ``foldmq spark`` command: the log, and how to run Spark."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from cli.common.option_groups import with_option_groups
from cli.logs.source_flags import SourceFlags, with_source_flags
from cli.program.common_flags import At, End, Start
from eventstore.errors import UsageError

MASTER = "local[*]"
MEMORY = "2g"

_VERBOSE = "Print where the log is read, and Spark's own logs."


@dataclass(frozen=True, slots=True)
class SparkFlags:
    """The common flags of a Spark job."""

    source: SourceFlags
    archive: str | None = None
    """Directory or URI of an archive, or None."""
    master: str | None = None
    memory: str | None = None
    conf: dict[str, str] = field(default_factory=dict)

    @property
    def of_session(self) -> bool:
        """Whether a flag on how to start Spark was given."""
        return self.master is not None or self.memory is not None or bool(self.conf)


@dataclass(frozen=True, slots=True)
class ArchiveFlag:
    """An archive to read."""

    archive: Annotated[str | None, typer.Option("--archive", metavar="DIR")] = None
    """Read this archive; with --data-dir or --nats-url also the rest of the log."""


@dataclass(frozen=True, slots=True)
class SessionFlags:
    """How to start Spark."""

    master: Annotated[str | None, typer.Option("--master", metavar="MASTER")] = None
    """Spark master: local[N] with N cores, spark://..., yarn, k8s://... [default: local[*]]"""
    memory: Annotated[str | None, typer.Option("--memory", metavar="SIZE")] = None
    """Heap size of Spark's JVM, without its Python workers. [default: 2g]"""
    conf: Annotated[list[str] | None, typer.Option("--conf", metavar="KEY=VALUE")] = None
    """Spark setting. May be repeated."""


_MAX_ROWS = 2**31 - 1
"""Maximum number of rows of a Spark query."""
_MAX_LEVELS = 65_536
"""Maximum number of topic levels: a topic has at most 65,535 bytes."""

_Html = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", help="Also write the report as HTML."),
]


@dataclass(frozen=True, slots=True)
class RebuildFlags:
    """The moment of a projection, and its output."""

    at: At = None
    output: Annotated[str | None, typer.Option("--output", metavar="DIR")] = None
    """Directory to create. [default: stdout]"""
    format: Annotated[str | None, typer.Option("--format", metavar="FORMAT")] = None
    """table or json; with --output, parquet or json. [default: the first]"""
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=1, max=_MAX_ROWS)] = None
    """Print at most N rows."""


@dataclass(frozen=True, slots=True)
class AuditFlags:
    """What an audit compares, and its report."""

    at: At = None
    html: _Html = None
    stored: Annotated[bool, typer.Option("--stored")] = False
    """Compare with the stored projections instead of the broker."""
    no_broker: Annotated[bool, typer.Option("--no-broker")] = False
    """Audit only the log, without comparing with the broker."""
    cluster: Annotated[bool, typer.Option("--cluster")] = False
    """Treat the nodes as one cluster: each session has one owner."""


@dataclass(frozen=True, slots=True)
class StatsFlags:
    """The groups and the period of statistics, and their output."""

    by: Annotated[str, typer.Option("--by", metavar="KEYS")] = "topic"
    """Group by some of topic,client,qos."""
    levels: Annotated[int, typer.Option("--levels", metavar="N", min=1, max=_MAX_LEVELS)] = 2
    """Number of topic levels to group by."""
    window: Annotated[str, typer.Option("--window", metavar="TIME")] = "1m"
    """Length of a time window: 10s, 1m, 1h."""
    start: Start = None
    end: End = None
    top: Annotated[int | None, typer.Option("--top", metavar="N", min=1, max=_MAX_ROWS)] = None
    """Number of groups to print. [default: 20]"""
    output: Annotated[str | None, typer.Option("--output", metavar="DIR")] = None
    """Directory to create, with all windows as Parquet."""
    html: _Html = None


def with_spark_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Add the flags to ``command``, whose first parameter is a SourceFlags; others are groups."""
    return with_source_flags(with_option_groups(command), verbose=_VERBOSE)


def spark_flags(
    source: SourceFlags, session: SessionFlags, archive: str | None = None
) -> SparkFlags:
    """Return the common flags of a job; raises FoldmqError if Spark cannot be started so."""
    from spark.runtime.java import find_java
    from spark.runtime.session import check_settings, is_submitted, require_pyspark

    check_settings(session.master or MASTER, session.memory or MEMORY)
    require_pyspark()
    if not is_submitted():
        find_java()
    return SparkFlags(source, archive, session.master, session.memory, _conf(session.conf))


def _conf(settings: list[str] | None) -> dict[str, str]:
    conf: dict[str, str] = {}
    for setting in settings or ():
        key, equals, value = setting.partition("=")
        if not equals or not key.startswith("spark."):
            raise UsageError(f"not a Spark setting: {setting!r}; must be spark.KEY=VALUE")
        conf[key] = value
    return conf
