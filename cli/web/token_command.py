"""The command ``foldmq web-token``: tokens of the web page."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from cli.common import text
from cli.common.units import seconds
from cli.program.help_pages import Program
from cli.settings.log_settings import load_log_settings
from cli.users import line_files
from cli.web.own_token import cookie_of, new_secret
from cli.web.tokens import (
    MAX_TOKENS,
    TOKENS_FILE,
    Grant,
    Role,
    ends,
    mark_of,
    name_problem,
    parse,
    read,
)
from eventstore.errors import NoLog, NotFound, UsageError

_app = Program(
    help="Manage the tokens of the web page.",
    no_args_is_help=True,
)
_NEVER = "never"
_LONGEST = 100 * 365 * 86_400.0

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the token.")]
File = Annotated[
    Path | None,
    typer.Option(
        "--tokens", metavar="FILE", help="Token file. [default: web.tokens in --data-dir]"
    ),
]
DataDir = Annotated[
    str | None,
    typer.Option(
        "--data-dir", metavar="DIR", help="Data directory of the broker. [default: foldmq-data]"
    ),
]
Config = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="TOML file with the broker's settings."),
]


def register_token_command(app: Program) -> None:
    """Add the commands to the program."""
    app.add_typer(_app, name="web-token")


@_app.command("add")
def _add(
    name: Name,
    role: Annotated[
        Role,
        typer.Option(
            "--role",
            help="Role: view (without payloads), view-all (with payloads), operate (may make "
            "changes), or publish (may publish through the HTTP API, and nothing else).",
        ),
    ],
    expires: Annotated[
        str, typer.Option("--expires", metavar="TIME|never", help="Lifetime: 30d, 12h.")
    ] = "30d",
    tokens: File = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Create a token and print it; it cannot be shown again.

    A running web page accepts it immediately. Each login is recorded in the log with the token's
    name and role.
    """
    problem = name_problem(name)
    if problem is not None:
        raise UsageError(f"{text.name(name)} cannot be used: {problem}")
    end = _end(expires)
    path = _file(tokens, data_dir, config)
    secret = new_secret()
    grant = Grant(name, role, mark_of(cookie_of(secret)), end)
    with line_files.locked(path):
        content = _content(path)
        tokens_by_name = parse(path, content)
        if name in tokens_by_name:
            raise UsageError(f"{path} already has a token {name}: remove it first")
        if len(tokens_by_name) >= MAX_TOKENS:
            raise UsageError(f"{path} has {MAX_TOKENS} tokens, which is the maximum")
        line_files.write_lines(path, [*line_files.lines_of(content), grant.line], as_directory=True)
    typer.echo(secret)
    until = "does not expire" if end is None else f"expires at {ends(end)}"
    sys.stderr.write(
        f"token {name} added to {path}: role {role}, {until}; it cannot be shown again\n"
    )


@_app.command("ls")
def _ls(
    tokens: File = None,
    data_dir: DataDir = None,
    config: Config = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per token.")
    ] = False,
) -> None:
    """List the tokens: name, role, expiry. The tokens themselves are not stored."""
    now = time.time()
    for grant in read(_file(tokens, data_dir, config)).values():
        end = ends(grant.expires)
        if as_json:
            row = {
                "name": grant.name,
                "role": grant.role,
                "expires": None if grant.expires is None else end,
                "expired": not grant.holds(now),
            }
            typer.echo(json.dumps(row))
        else:
            typer.echo(f"{grant.name} {grant.role} {end}{'' if grant.holds(now) else ' (expired)'}")


@_app.command("rm")
def _rm(name: Name, tokens: File = None, data_dir: DataDir = None, config: Config = None) -> None:
    """Remove a token and end its logins."""
    path = _file(tokens, data_dir, config)
    with line_files.locked(path):
        content = _content(path)
        if name not in parse(path, content):
            raise NotFound(f"{path} has no token {text.name(name)}")
        lines = line_files.lines_of(content)
        kept = [line for line in lines if line.startswith("#") or line.split()[:1] != [name]]
        line_files.write_lines(path, kept, as_directory=True)
    typer.echo(f"token {name} removed from {path}")


def _end(expires: str) -> int | None:
    """Return the expiry of a token created now; raises UsageError."""
    if expires == _NEVER:
        return None
    try:
        span = seconds(expires)
    except ValueError:
        span = None
    if not isinstance(span, float) or not 1 <= span <= _LONGEST:
        raise UsageError(
            f'--expires "{text.escaped(expires)}" must be a time such as 30d or 12h, or {_NEVER}'
        )
    return int(time.time() + span)


def _file(tokens: Path | None, data_dir: str | None, config: Path | None) -> Path:
    """Return the token file; raises NoLog and ConfigError."""
    if tokens is not None:
        return tokens
    flags: dict[str, object] = {} if data_dir is None else {"data_dir": data_dir}
    directory = load_log_settings(flags, os.environ, config).data_dir
    if not directory.is_dir():
        raise NoLog(f"data directory {directory} does not exist: give --data-dir or --tokens FILE")
    return directory / TOKENS_FILE


def _content(path: Path) -> str:
    read(path)  # raises BadTokens
    return path.read_text("utf-8-sig") if path.exists() else ""
