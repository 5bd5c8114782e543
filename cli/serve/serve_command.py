"""The command ``foldmq serve``."""

from pathlib import Path

from cli.program.help_pages import Program
from cli.settings.setting_flags import with_settings_flags


def register_serve_command(app: Program) -> None:
    """Add the command to the program."""
    app.command("serve")(_serve)


@with_settings_flags
def _serve(config: Path | None, flags: dict[str, object]) -> None:
    """Run the broker.

    Every setting can also be given as an environment variable (FOLDMQ_MAX_SESSIONS for
    --max-sessions) and in a TOML file (max_sessions). Flags override environment variables, which
    override the file. Sizes and times may have a unit: 16MiB, 30s. SIGHUP reloads log level, users,
    permissions, certificates and limits; SIGTERM drains the broker and stops it.
    """
    # The flags alone need no packages of the broker.
    from cli.serve import process_runner

    process_runner.run_service(flags, config)
