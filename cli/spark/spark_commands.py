"""The commands ``foldmq audit`` and ``foldmq spark``: jobs on the whole log."""

from collections.abc import Callable
from typing import Annotated

import typer

from cli.common.option_groups import with_option_groups
from cli.logs.source_flags import SourceFlags, with_source_flags
from cli.program.common_flags import Json
from cli.program.help_pages import Program
from cli.spark.spark_flags import (
    AuditFlags,
    RebuildFlags,
    SparkFlags,
    StatsFlags,
    with_spark_flags,
    with_spark_flags_but_archive,
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
    def rebuilt(spark: SparkFlags, options: RebuildFlags) -> None:
        from cli.spark import rebuild

        rebuild.run_rebuild(spark, what, options)

    return with_spark_flags(with_option_groups(rebuilt))


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
@with_option_groups
def _audit(spark: SparkFlags, options: AuditFlags, as_json: Json = False) -> None:
    """Check the guarantees of MQTT over the whole log.

    As 'foldmq audit', but Spark audits large logs. Also compares the running broker's state with
    the log, except with --at. Prints a report. Exits with 1 if there are violations, and prints
    their positions.
    """
    from cli.spark import audit

    audit.run_audit(spark, options, as_json=as_json, spark=True)


@spark_app.command("archive")
@with_spark_flags_but_archive
def _archive(
    spark: SparkFlags,
    directory: Annotated[
        str, typer.Argument(metavar="DIR", help="Directory or s3:// URI, created if missing.")
    ],
    as_json: Json = False,
) -> None:
    """Archive new records of the log as Parquet files.

    Each run continues where the last one ended, and notifies the broker of the archived position.
    With keep_until_archived, the broker deletes only archived records.
    """
    from cli.spark import archive

    archive.run_archive(spark, directory, as_json=as_json)


@spark_app.command("recovery-check")
@with_spark_flags
def _recovery_check(
    spark: SparkFlags,
    no_broker: Annotated[
        bool,
        typer.Option("--no-broker", help="Check only the log, without comparing with the broker."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Check that a restarted broker recovered its state.

    Was anything lost at its last start? After a crash or any other start, everything that was
    acknowledged or in flight before must exist afterwards. Exits with 1 if anything is missing or
    wrong, and prints the positions.
    """
    from cli.spark import recovery_check

    if not recovery_check.run_recovery_check(spark, alone=no_broker, as_json=as_json):
        raise typer.Exit(1)


@spark_app.command("stats")
@with_spark_flags
@with_option_groups
def _stats(
    spark: SparkFlags,
    options: StatsFlags,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, with all groups or --top.")
    ] = False,
) -> None:
    """Show statistics of the traffic.

    Messages, bytes, mean and peak rates, and what grows.
    """
    from cli.spark import stats

    stats.run_stats(spark, options, as_json=as_json)
