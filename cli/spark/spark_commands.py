"""The commands ``foldmq audit`` and ``foldmq spark``: jobs on the whole log."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from cli.logs.source_flags import SourceFlags, with_source_flags
from cli.program.common_flags import At, End, Json, Start
from cli.program.help_pages import Program
from cli.spark.spark_flags import SparkFlags, with_spark_flags, with_spark_flags_but_archive

_MAX = 2**31 - 1
"""Maximum number of rows of a Spark query."""
_LEVELS = 65_536
"""Maximum number of topic levels: a topic has at most 65,535 bytes."""

_Output = Annotated[
    str | None,
    typer.Option("--output", metavar="DIR", help="Directory to create. [default: stdout]"),
]
_Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help="table or json; with --output, parquet or json. [default: the first]",
    ),
]
_Html = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", help="Also write the report as HTML."),
]
_Limit = Annotated[
    int | None,
    typer.Option("--limit", metavar="N", min=1, max=_MAX, help="Print at most N rows."),
]

_Stored = Annotated[
    bool,
    typer.Option("--stored", help="Compare with the stored projections instead of the broker."),
]
_NoBroker = Annotated[
    bool,
    typer.Option("--no-broker", help="Audit only the log, without comparing with the broker."),
]
_Cluster = Annotated[
    bool,
    typer.Option("--cluster", help="Treat the nodes as one cluster: each session has one owner."),
]

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
        spark: SparkFlags,
        at: At = None,
        output: _Output = None,
        format_: _Format = None,
        limit: _Limit = None,
    ) -> None:
        from cli.spark import rebuild

        rebuild.run_rebuild(spark, what, at, output, format_, limit)

    return with_spark_flags(rebuilt)


for _what, _help in _REBUILT.items():
    rebuild_app.command(_what, help=_help)(_rebuilding(_what))


@with_source_flags
def _audit_here(
    source: SourceFlags,
    at: At = None,
    html: _Html = None,
    stored: _Stored = False,
    no_broker: _NoBroker = False,
    cluster: _Cluster = False,
    as_json: Json = False,
) -> None:
    """Check the guarantees of MQTT over the whole log.

    Did the broker do what MQTT promises: was every message delivered, once and in order? Also
    compares the running broker's state with the log, except with --at. Prints a report. Exits with
    1 if there are violations, and prints their positions. A log of more than
    128 MiB may take half of the free memory; 'spark audit' audits larger ones.
    """
    from cli.spark import audit

    how = {"stored": stored, "alone": no_broker, "cluster": cluster, "as_json": as_json}
    audit.run_audit(SparkFlags(source), at, html, **how, spark=False)


@spark_app.command("audit")
@with_spark_flags
def _audit(
    spark: SparkFlags,
    at: At = None,
    html: _Html = None,
    stored: _Stored = False,
    no_broker: _NoBroker = False,
    cluster: _Cluster = False,
    as_json: Json = False,
) -> None:
    """Check the guarantees of MQTT over the whole log.

    As 'foldmq audit', but Spark audits large logs. Also compares the running broker's state with
    the log, except with --at. Prints a report. Exits with 1 if there are violations, and prints
    their positions.
    """
    from cli.spark import audit

    how = {"stored": stored, "alone": no_broker, "cluster": cluster, "as_json": as_json}
    audit.run_audit(spark, at, html, **how, spark=True)


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
def _stats(
    spark: SparkFlags,
    by: Annotated[
        str,
        typer.Option("--by", metavar="KEYS", help="Group by some of topic,client,qos."),
    ] = "topic",
    levels: Annotated[
        int,
        typer.Option(
            "--levels", metavar="N", min=1, max=_LEVELS, help="Number of topic levels to group by."
        ),
    ] = 2,
    window: Annotated[
        str, typer.Option("--window", metavar="TIME", help="Length of a time window: 10s, 1m, 1h.")
    ] = "1m",
    start: Start = None,
    end: End = None,
    top: Annotated[
        int | None,
        typer.Option(
            "--top", metavar="N", min=1, max=_MAX, help="Number of groups to print. [default: 20]"
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output", metavar="DIR", help="Directory to create, with all windows as Parquet."
        ),
    ] = None,
    html: _Html = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, with all groups or --top.")
    ] = False,
) -> None:
    """Show statistics of the traffic.

    Messages, bytes, mean and peak rates, and what grows.
    """
    from cli.spark import stats

    stats.run_stats(spark, (start, end), by, levels, window, output, top, html, as_json=as_json)
