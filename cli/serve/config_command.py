"""The command ``foldmq config check``."""

from pathlib import Path

from cli.program.help_pages import Program
from cli.settings.setting_flags import with_settings_flags

_app = Program(help="Check the configuration.", no_args_is_help=True)


def register_config_command(app: Program) -> None:
    """Add the commands to the program."""
    app.add_typer(_app, name="config")


@_app.callback()
def _config() -> None:
    """Check the configuration."""


@_app.command("check")
@with_settings_flags
def _check(config: Path | None, flags: dict[str, object]) -> None:
    """Check the settings and the files that they name, without starting anything.

    Takes the flags of 'serve', reads the same environment and file, and refuses what 'serve' would
    refuse, with exit code 78. Prints the settings that are set, and where. Addresses are not
    listened on, so that a broker may be running.
    """
    from cli.serve import config_check

    config_check.run_config_check(flags, config)
