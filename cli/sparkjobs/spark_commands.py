"""``foldmq spark``: jobs on the whole log, by Spark."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from cli.sparkjobs.spark_flags import SparkFlags, with_spark_flags, with_spark_flags_but_archive

_MOST = 2**31 - 1
"""Rows that Spark can be asked for."""
_LEVELS = 65_536
"""A topic cannot have more: it has 65,535 bytes at most."""

_At = Annotated[
    str | None,
    typer.Option("--at", metavar="POS|TIME", help="As of this moment. [default: now]"),
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_Output = Annotated[
    str | None,
    typer.Option("--output", metavar="DIR", help="Directory that is made. [default: stdout]"),
]
_Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help="table or json; parquet or json with --output. [default: the first]",
    ),
]
_Limit = Annotated[
    int | None,
    typer.Option("--limit", metavar="N", min=1, max=_MOST, help="Print at most N."),
]

spark_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, add_completion=False)
rebuild_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, add_completion=False)


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.add_typer(spark_app, name="spark", help="Jobs of Spark on the whole log: audit it, ...")
    spark_app.add_typer(
        rebuild_app, name="rebuild", help="Rebuild what the broker knows from the log alone."
    )


# Spark, and the packages that read the log, are not loaded for the other commands.


_REBUILT = {
    "sessions": """Rebuild the sessions.

    Each by the code that the broker folds it with: subscriptions, packet identifiers in use,
    queues, will. With --output, all of its state.
    """,
    "retained": "Rebuild the retained messages.",
    "pending": """Rebuild the packet identifiers in use.

    What clients and broker still owe each other at QoS 1 and 2, in both directions.
    """,
    "queues": "Rebuild the queues: what waits for which subscription.",
    "wills": "Rebuild the wills that are armed.",
}
"""What can be rebuilt, and the help of its command."""


def _rebuilding(what: str) -> Callable[..., None]:
    def rebuilt(
        spark: SparkFlags,
        at: _At = None,
        output: _Output = None,
        format_: _Format = None,
        limit: _Limit = None,
    ) -> None:
        from cli.sparkjobs import rebuild

        rebuild.run_rebuild(spark, what, at, output, format_, limit)

    return with_spark_flags(rebuilt)


for _what, _help in _REBUILT.items():
    rebuild_app.command(_what, help=_help)(_rebuilding(_what))


@spark_app.command("audit")
@with_spark_flags
def _audit(
    spark: SparkFlags,
    at: _At = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write the report as a page, too."),
    ] = None,
    stored: Annotated[
        bool, typer.Option("--stored", help="Compare with what is stored, not with the broker.")
    ] = False,
    no_broker: Annotated[
        bool, typer.Option("--no-broker", help="Compare with no broker: the log alone.")
    ] = False,
    cluster: Annotated[
        bool,
        typer.Option("--cluster", help="Several nodes share their sessions: one owns each."),
    ] = False,
    as_json: _Json = False,
) -> None:
    """Check that every promise of MQTT was kept, over the whole log.

    And that the running broker has the state that the log tells of. Prints a report; exit code 1
    if anything is wrong, with the positions. With --at the broker is not asked.
    """
    from cli.sparkjobs import audit

    wanted = audit.Wanted(at, html, as_json, stored, no_broker, cluster)
    if not audit.run_audit(spark, wanted):
        raise typer.Exit(1)


@spark_app.command("archive")
@with_spark_flags_but_archive
def _archive(
    spark: SparkFlags,
    directory: Annotated[
        str, typer.Argument(metavar="DIR", help="Where the archive is; made if it is not there.")
    ],
    as_json: _Json = False,
) -> None:
    """Archive what is new of the log, and tell the broker how far that goes.

    As Parquet files; every run goes on behind the one before. With keep_until_archived the broker
    cuts off its log only what is archived.
    """
    from cli.sparkjobs import archive

    archive.run_archive(spark, directory, as_json=as_json)


@spark_app.command("recovery-check")
@with_spark_flags
def _recovery_check(
    spark: SparkFlags,
    no_broker: Annotated[
        bool, typer.Option("--no-broker", help="Do not ask the broker: the log alone.")
    ] = False,
    as_json: _Json = False,
) -> None:
    """Prove that a broker which was started again has the state that it must have.

    After a crash, or any start: what was acknowledged or on its way before is there afterwards.
    Exit code 1 if anything is wrong, with the positions.
    """
    from cli.sparkjobs import recovery_check

    if not recovery_check.run_recovery_check(spark, alone=no_broker, as_json=as_json):
        raise typer.Exit(1)


@spark_app.command("stats")
@with_spark_flags
def _stats(
    spark: SparkFlags,
    by: Annotated[
        str,
        typer.Option("--by", metavar="KEYS", help="Some of topic,client,qos."),
    ] = "topic",
    levels: Annotated[
        int,
        typer.Option(
            "--levels", metavar="N", min=1, max=_LEVELS, help="How many levels of a topic count."
        ),
    ] = 2,
    window: Annotated[
        str, typer.Option("--window", metavar="TIME", help="Length of a window: 10s, 1m, 1h.")
    ] = "1m",
    start: Annotated[
        str | None, typer.Option("--from", metavar="POS|TIME", help="Begin there.")
    ] = None,
    end: Annotated[str | None, typer.Option("--to", metavar="POS|TIME", help="End there.")] = None,
    top: Annotated[
        int | None,
        typer.Option(
            "--top", metavar="N", min=1, max=_MOST, help="How many groups are shown. [default: 20]"
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output", metavar="DIR", help="Write all windows there as Parquet; it is made."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON; all groups, or --top.")
    ] = False,
) -> None:
    """Count the traffic, for planning: messages and bytes, mean and peak rates, what grows."""
    from cli.sparkjobs import stats

    stats.run_stats(spark, (start, end), by, levels, window, output, top, as_json=as_json)
