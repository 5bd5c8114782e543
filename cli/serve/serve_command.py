"""The commands ``foldmq serve``, ``foldmq config check`` and ``foldmq pseudonym``."""

from pathlib import Path
from typing import Annotated

import typer

from cli.program.help_pages import Program
from cli.program.process import absent
from cli.settings.setting_flags import with_settings_flags

_config = Program(help="Check the configuration.", no_args_is_help=True)


def register_serve_command(app: Program) -> None:
    """Add the commands to the program."""
    app.command("serve")(_serve)
    app.add_typer(_config, name="config")
    app.command("pseudonym")(_pseudonym)


@with_settings_flags
def _serve(config: Path | None, flags: dict[str, object]) -> None:
    """Run the broker.

    Every setting can also be given as an environment variable (FOLDMQ_MAX_SESSIONS for
    --max-sessions) and in a TOML file (max_sessions). Flags override environment variables, which
    override the file. Sizes and times may have a unit: 16MiB, 30s. SIGHUP reloads log level, users,
    permissions, certificates and limits; SIGTERM drains the broker and stops it.
    """
    # The flags alone need no packages of the broker.
    with absent("colorama", "greenlet", "rich"):  # structlog prints no tracebacks here
        import structlog  # noqa: F401

    from cli.serve import process_runner

    process_runner.run_service(flags, config)


@_config.callback()
def _check_commands() -> None:
    """Check the configuration."""


@_config.command("check")
@with_settings_flags
def _check(config: Path | None, flags: dict[str, object]) -> None:
    """Check the settings and the files that they name, without starting anything.

    Takes the flags of 'serve', reads the same environment and file, and refuses what 'serve' would
    refuse, with exit code 78. Prints the settings that are set, and where. Addresses are not
    listened on, so that a broker may be running.
    """
    from cli.serve import config_check

    config_check.run_config_check(flags, config)


def _pseudonym(
    client: Annotated[str, typer.Argument(metavar="ID", help="Client identifier.")],
    data_dir: Annotated[
        Path, typer.Option("--data-dir", metavar="DIR", help="Data directory of the broker.")
    ] = Path("foldmq-data"),
    cluster_key_file: Annotated[
        Path | None,
        typer.Option(
            "--cluster-key-file",
            metavar="FILE",
            help="For a cluster: its key, instead of a data directory.",
        ),
    ] = None,
) -> None:
    """Show the pseudonym of a client identifier.

    Works for the data directory of a broker with pseudonyms = true, and for the key of a cluster.
    """
    from cli.serve.auth_factory import pseudonym_of

    typer.echo(pseudonym_of(client, data_dir, cluster_key_file))
