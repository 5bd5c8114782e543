"""The commands ``foldmq audit`` and ``foldmq spark``: jobs on the whole log."""

from collections.abc import Callable
from typing import Annotated

import typer

from cli.common.option_groups import with_option_groups
from cli.logs.source_flags import SourceFlags, with_source_flags
from cli.program.common_flags import Json
from cli.program.help_pages import Program
from cli.spark.spark_flags import (
    ArchiveFlag,
    AuditFlags,
    RebuildFlags,
    SessionFlags,
    SparkFlags,
    StatsFlags,
    spark_flags,
    with_spark_flags,
)

spark_app = Program(no_args_is_help=True)
rebuild_app = Program(no_args_is_help=True)


def register_spark_commands(app: Program) -> None:
    """Add the commands to the program."""
    app.command("audit")(_audit_here)
    app.add_typer(
        spark_app,
        name="spark",
        help="Run Spark jobs on the log.",
    )
    spark_app.add_typer(
        rebuild_app, name="rebuild", help="Rebuild the broker's state from the log."
    )


# Other commands load neither Spark nor the packages that read the log.


_REBUILT = {
    "sessions": (
        "Rebuild the sessions. ¶ With the same code as the broker: subscriptions, packet "
        "identifiers in use, queues, will. With --output, the complete state.    "
    ),
    "retained": "Rebuild the retained messages.",
    "pending": (
        "Rebuild the packet identifiers in use. ¶ The QoS 1 and 2 exchanges that are not "
        "complete, in both directions.    "
    ),
    "queues": "Rebuild the queues of the subscriptions.",
    "wills": "Rebuild the wills of connected clients.",
}
"""Projections, with the help texts of their commands."""


def _rebuilding(what: str) -> Callable[..., None]:
    def rebuilt(
        source: SourceFlags, options: RebuildFlags, archive: ArchiveFlag, session: SessionFlags
    ) -> None:
        spark = spark_flags(source, session, archive.archive)
        from cli.spark import rebuild

        rebuild.run_rebuild(spark, what, options)

    return with_spark_flags(rebuilt)


for _what, _help in _REBUILT.items():
    rebuild_app.command(_what, help=_help)(_rebuilding(_what))


@with_source_flags
@with_option_groups
def _audit_here(source: SourceFlags, options: AuditFlags, as_json: Json = False) -> None:
    """Check the guarantees of MQTT over the whole log.

    Did the broker do what MQTT promises: was every message delivered, once and in order? Also
    compares the running broker's state with the log, except with --at. Prints a report. Exits with
    1 if there are violations, and prints their positions. A log of more than
    128 MiB may take half of the free memory; 'spark audit' audits larger ones.
    """
    from cli.spark import audit

    audit.run_audit(SparkFlags(source), options, as_json=as_json, spark=False)


@spark_app.command("audit")
@with_spark_flags
def _audit(
    source: SourceFlags,
    options: AuditFlags,
    *,
    as_json: Json = False,
    archive: ArchiveFlag,
    session: SessionFlags,
) -> None:
    """Check the guarantees of MQTT over the whole log.

    As 'foldmq audit', but Spark audits large logs. Also compares the running broker's state with
    the log, except with --at. Prints a report. Exits with 1 if there are violations, and prints
    their positions.
    """
    spark = spark_flags(source, session, archive.archive)
    from cli.spark import audit

    audit.run_audit(spark, options, as_json=as_json, spark=True)


@spark_app.command("archive")
@with_spark_flags
def _archive(
    source: SourceFlags,
    *,
    directory: Annotated[
        str, typer.Argument(metavar="DIR", help="Directory or s3:// URI, created if missing.")
    ],
    as_json: Json = False,
    session: SessionFlags,
) -> None:
    """Archive new records of the log as Parquet files.

    Each run continues where the last one ended, and notifies the broker of the archived position.
    With keep_until_archived, the broker deletes only archived records.
    """
    spark = spark_flags(source, session)
    from cli.spark import archive

    archive.run_archive(spark, directory, as_json=as_json)


@spark_app.command("recovery-check")
@with_spark_flags
def _recovery_check(
    source: SourceFlags,
    *,
    no_broker: Annotated[
        bool,
        typer.Option("--no-broker", help="Check only the log, without comparing with the broker."),
    ] = False,
    as_json: Json = False,
    archive: ArchiveFlag,
    session: SessionFlags,
) -> None:
    """Check that a restarted broker recovered its state.

    Was anything lost at its last start? After a crash or any other start, everything that was
    acknowledged or in flight before must exist afterwards. Exits with 1 if anything is missing or
    wrong, and prints the positions.
    """
    spark = spark_flags(source, session, archive.archive)
    from cli.spark import recovery_check

    if not recovery_check.run_recovery_check(spark, alone=no_broker, as_json=as_json):
        raise typer.Exit(1)


@spark_app.command("stats")
@with_spark_flags
def _stats(
    source: SourceFlags,
    options: StatsFlags,
    *,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, with all groups or --top.")
    ] = False,
    archive: ArchiveFlag,
    session: SessionFlags,
) -> None:
    """Show statistics of the traffic.

    Messages, bytes, mean and peak rates, and what grows.
    """
    spark = spark_flags(source, session, archive.archive)
    from cli.spark import stats

    stats.run_stats(spark, options, as_json=as_json)
