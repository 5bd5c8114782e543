"""The command ``foldmq version``."""

import typer

from cli.program.common_flags import Json
from cli.program.help_pages import Program


def register_version_command(app: Program) -> None:
    """Add the command to the program."""
    app.command("version")(show_build)


def show_version() -> None:
    """Show the version in one line, for ``foldmq --version``."""
    from cli.common.package_version import version

    typer.echo(f"foldmq {version}")


def show_build(*, as_json: Json = False) -> None:
    """Show the version, Python, the NATS server, and whether modules are compiled."""
    import platform

    import orjson

    from cli.common import interpreter
    from cli.common.package_version import version

    path, nats_version, problem = _nats_server()
    if as_json:
        build = {
            "version": version,
            "implementation": platform.python_implementation(),
            "python": platform.python_version(),
            "machine": platform.machine(),
            "optimised": interpreter.own(),
            "compiled": interpreter.compiled(),
            "nats_server": nats_version,
            "nats_server_path": path,
            "nats_server_problem": problem,
        }
        typer.echo(orjson.dumps(build).decode())
        return
    show_version()
    typer.echo(f"{interpreter.described()}, {platform.machine()}")
    typer.echo(problem or f"nats-server {nats_version}: {path}")


def _nats_server() -> tuple[str | None, str | None, str | None]:
    """Return path and version of the NATS server that foldmq starts, and why it cannot be used."""
    import asyncio
    from pathlib import Path

    from eventstore.errors import NatsUnavailable
    from eventstore.server.process import check_binary, find_binary

    path = None
    try:
        path = str(find_binary())
        return path, asyncio.run(check_binary(Path(path))), None
    except NatsUnavailable as error:
        return path, None, str(error)
