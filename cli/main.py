"""The ``foldmq`` command."""

import io
import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from cli.clients import client_commands
from cli.common import argv_secrets, version
from cli.history import log_commands
from cli.operator import operator_commands as operatorcommands
from cli.settings import with_settings_flags
from cli.sparkjobs import spark_commands as sparkcommands
from cli.users import acl_command, passwd_command
from cli.web import web_command as webcommand
from protocol.errors import FoldmqError

app = typer.Typer(
    name="foldmq",
    help="A crash-safe MQTT broker: it acknowledges a message when the message is on disk.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def main() -> NoReturn:
    """Run the command; a FoldmqError becomes one line on stderr and its exit code."""
    argv_secrets.hide(sys.argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Names chosen by clients may not exist in the encoding of the terminal.
            stream.reconfigure(errors="backslashreplace")
    try:
        app(prog_name="foldmq")
    except FoldmqError as error:
        fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader of the output is gone: the flush at exit must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    sys.exit(0)


def fail(message: str, exit_code: int) -> NoReturn:
    """Print ``foldmq: message`` as one line on stderr and exit."""
    # No traceback: the message must be enough for the user.
    sys.stderr.write("foldmq: " + " ".join(message.split("\n")) + "\n")
    sys.exit(exit_code)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"foldmq {version}")
        raise typer.Exit


@app.callback()
def _foldmq(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    del show_version


@app.command("version")
def _version() -> None:
    """Show the version."""
    typer.echo(f"foldmq {version}")


@app.command("serve")
@with_settings_flags
def _serve(config: Path | None, flags: dict[str, object]) -> None:
    """Run the broker.

    Every setting can also be given as an environment variable (FOLDMQ_MAX_SESSIONS for
    --max-sessions) and in a TOML file (max_sessions). Flags override environment variables, which
    override the file. Sizes and times may have a unit: 16MiB, 30s. SIGHUP reloads log level, users,
    permissions, certificates and limits; SIGTERM drains the broker and stops it.
    """
    # Other commands do not load the packages of the broker.
    from cli.serve import service

    service.run_service(flags, config)


@app.command("pseudonym")
def _pseudonym(
    client: Annotated[str, typer.Argument(metavar="ID", help="Client ID.")],
    data_dir: Annotated[
        Path, typer.Option("--data-dir", metavar="DIR", help="Data directory of the broker.")
    ] = Path("foldmq-data"),
) -> None:
    """Show the pseudonym of a client ID.

    Works for the data directory of a broker with pseudonyms = true.
    """
    from cli.serve import auth_factory

    typer.echo(auth_factory.pseudonym_of(client, data_dir))


@app.command("salvage")
def _salvage(
    data_dir: Annotated[
        Path, typer.Option("--data-dir", metavar="DIR", help="Data directory with the damaged log.")
    ],
    to: Annotated[Path, typer.Option("--to", metavar="NEWDIR", help="Data directory to create.")],
) -> None:
    """Copy the intact part of a damaged log.

    Creates a new data directory; the damaged one is only read. The new one needs disk space for
    twice the log while this runs.
    """
    from cli.history import salvage

    salvage.run_salvage(data_dir, to)


log_commands.register_log_commands(app)
operatorcommands.register_operator_commands(app)
webcommand.register_web_command(app)
sparkcommands.register_spark_commands(app)
acl_command.register_acl_command(app)
passwd_command.register_passwd_command(app)
client_commands.register_client_commands(app)


if __name__ == "__main__":
    main()
