"""The commands about the destinations of the outbox."""

from typing import Annotated

import typer

from cli.logs.source_flags import SourceFlags, with_broker_flags, with_source_flags
from cli.program.common_flags import Json, JsonRows
from cli.program.help_pages import Program

_Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the destination.")]

outbox_app = Program(no_args_is_help=True)


def register_outbox_commands(app: Program) -> None:
    """Add the commands to the program."""
    app.add_typer(
        outbox_app,
        name="outbox",
        help="List and change destinations that get messages from the log.",
    )


# Other commands do not load the packages that query the broker.


@outbox_app.command("ls")
@with_broker_flags
def _ls(source: SourceFlags, as_json: JsonRows = False) -> None:
    """List the destinations, and how far they are behind."""
    from cli.commands import outbox

    outbox.list_destinations(source, as_json=as_json)


@outbox_app.command("show")
@with_broker_flags
def _show(source: SourceFlags, name: _Name, as_json: Json = False) -> None:
    """Show a destination: its state, cursor, and the last error."""
    from cli.commands import outbox

    outbox.show_destination(source, name, as_json=as_json)


@outbox_app.command("pause")
@with_broker_flags
def _pause(source: SourceFlags, name: _Name) -> None:
    """Stop sending to a destination; the log keeps its messages within the bounds."""
    from cli.commands import outbox

    outbox.change_destination(source, name, "pause_destination")


@outbox_app.command("resume")
@with_broker_flags
def _resume(source: SourceFlags, name: _Name) -> None:
    """Send to a paused destination again, from where it was."""
    from cli.commands import outbox

    outbox.change_destination(source, name, "resume_destination")


@outbox_app.command("skip")
@with_broker_flags
def _skip(
    source: SourceFlags,
    name: _Name,
    to: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="POSITION", help="Last position to skip. [default: the end of the log]"
        ),
    ] = None,
) -> None:
    """Give up messages that a destination does not have yet; the log records which."""
    from cli.commands import outbox

    outbox.skip_messages(source, name, to)


@outbox_app.command("refused")
@with_source_flags
def _refused(source: SourceFlags, name: _Name, as_json: JsonRows = False) -> None:
    """List the messages that a destination refused, as far as the log has them."""
    from cli.commands import outbox

    outbox.list_refused(source, name, as_json=as_json)


@outbox_app.command("retry")
@with_broker_flags
def _retry(
    source: SourceFlags,
    name: _Name,
    at: Annotated[
        str | None,
        typer.Argument(metavar="[POSITION]", help="Only this message. [default: all refused]"),
    ] = None,
) -> None:
    """Send refused messages again, as far as the log has them."""
    from cli.commands import outbox

    outbox.retry_messages(source, name, at)


@outbox_app.command("export")
@with_source_flags
def _export(
    source: SourceFlags,
    name: _Name,
    start: Annotated[
        str | None, typer.Option("--from", metavar="POS|TIME", help="Start at this point.")
    ] = None,
    end: Annotated[
        str | None, typer.Option("--to", metavar="POS|TIME", help="End at this point.")
    ] = None,
) -> None:
    """Send the spans of messages in the log to the collector of a sink of kind otlp."""
    from cli.commands import outbox_export

    outbox_export.export_spans(source, name, start, end)


@outbox_app.command("run", hidden=True)
@with_source_flags
def _run(source: SourceFlags) -> None:
    """Run the destinations; 'foldmq serve' calls it."""
    from cli.logs import outbox_child

    outbox_child.run_outbox(source)
