"""The commands that read the log: ``log``, ``replay``, ``diff``, ``verify`` and ``why``."""

from typing import Annotated

import typer

from cli.logsource import SourceFlags, with_source_flags

_Session = Annotated[str | None, typer.Option("--session", metavar="ID", help="One session only.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

log_app = typer.Typer(no_args_is_help=False, rich_markup_mode=None, add_completion=False)


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.add_typer(log_app, name="log")
    app.command("replay")(_replay)
    app.command("diff")(_diff)
    app.command("verify")(_attest)
    app.command("why")(_why)


# The packages that read the log are not loaded for the other commands.


@log_app.callback(invoke_without_command=True)
@with_source_flags
def _log(
    source: SourceFlags,
    context: typer.Context,
    session: _Session = None,
    topic: Annotated[
        str | None,
        typer.Option("--topic", metavar="FILTER", help="What concerns messages on such topics."),
    ] = None,
    types: Annotated[
        list[str] | None,
        typer.Option("--type", metavar="TYPE", help="Events of this type; several may be given."),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="POS|TIME", help="Begin there: 12, 12.3, '10m ago', ..."),
    ] = None,
    end: Annotated[str | None, typer.Option("--to", metavar="POS|TIME", help="End there.")] = None,
    count: Annotated[
        int | None,
        typer.Option("-n", metavar="COUNT", min=1, help="The last ones; with --from the first."),
    ] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on as events come.")] = False,
    payload: Annotated[bool, typer.Option("--payload", help="Show payloads.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object per event.")] = False,
) -> None:
    """List the events of the log; 'log verify' checks it.

    The broker may run or not; nothing is written. Moments are positions (12, 12.3) or times
    ('2026-11-20 09:30', 09:30, '10m ago').
    """
    if context.invoked_subcommand is not None:
        context.obj = source
        return
    from cli.history import log_events

    wanted = log_events.selection(session, topic, types or (), (start, end), count, follow=follow)
    log_events.run(source, wanted, log_events.Look(as_json, payload))


@log_app.command("verify")
@with_source_flags
def _verify(source: SourceFlags, context: typer.Context, as_json: _Json = False) -> None:
    """Check that every record of the log is there, in order, intact and readable.

    Prints what is wrong where; exit code 1 if anything is.
    """
    from cli.history import verify_log

    given = context.obj
    flags = source.over(given) if isinstance(given, SourceFlags) else source
    if not verify_log.run(flags, as_json=as_json):
        raise typer.Exit(1)


@with_source_flags
def _replay(
    source: SourceFlags,
    at: Annotated[
        str | None, typer.Option("--at", metavar="POS|TIME", help="The moment. [default: now]")
    ] = None,
    session: Annotated[
        str | None, typer.Option("--session", metavar="ID", help="All of one session.")
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option("--topic", metavar="FILTER", help="The retained messages on such topics."),
    ] = None,
    as_json: _Json = False,
) -> None:
    """Show the state as of a moment.

    Sums, one session, or retained messages; nothing is written. The state is rebuilt from
    the log by the code that the broker recovers with.
    """
    from cli.history import replay

    replay.run(source, at, session, topic, as_json=as_json)


@with_source_flags
def _diff(
    source: SourceFlags,
    before: Annotated[str, typer.Argument(metavar="A", help="The earlier moment.")],
    after: Annotated[str, typer.Argument(metavar="B", help="The later moment.")],
    session: _Session = None,
    as_json: _Json = False,
) -> None:
    """Show what differs between two moments; nothing is written."""
    from cli.history import diff

    diff.run(source, before, after, session, as_json=as_json)


@with_source_flags
def _attest(
    source: SourceFlags,
    session: _Session = None,
    stored: Annotated[
        bool, typer.Option("--stored", help="Only what is stored; the broker may run or not.")
    ] = False,
    as_json: _Json = False,
) -> None:
    """Compare what the broker has in memory, and its projections, with the log.

    The state is rebuilt from the log; nothing is written. Exit code 1 if anything differs, with
    the first position where it parts; 'log verify' checks the log itself.
    """
    from cli.history import verify_state

    if not verify_state.run(source, session, stored=stored, as_json=as_json):
        raise typer.Exit(1)


@with_source_flags
def _why(
    source: SourceFlags,
    client: Annotated[
        str | None, typer.Option("--client", metavar="ID", help="The receiver in question.")
    ] = None,
    topic: Annotated[
        str | None, typer.Option("--topic", metavar="FILTER", help="The latest messages on it.")
    ] = None,
    where: Annotated[
        str | None, typer.Option("--position", metavar="POS", help="The message at a position.")
    ] = None,
    last: Annotated[
        int,
        typer.Option(
            "--last",
            metavar="N",
            min=1,
            help="How many of --topic. [default: 1]",
            show_default=False,
        ),
    ] = 1,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object per message.")
    ] = False,
) -> None:
    """Tell what became of a message.

    Who published it, whom it matched, and what happened on its way; nothing is written.
    """
    from cli.history import why

    why.run(source, client, topic, where, last, as_json=as_json)
