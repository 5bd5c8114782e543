"""The ``foldmq`` command."""

import io
import os
import sys
from typing import Annotated, NoReturn

import typer

from cli.common.colour import painted
from cli.program.command_table import CommandGroup
from cli.program.help_pages import Program
from cli.program.process import defer, end_process, hide_secrets
from cli.program.version_command import show_version
from protocol.errors import FoldmqError

app = Program(
    name="foldmq",
    help="A crash-safe MQTT broker: it acknowledges a message only once it is on disk.",
    cls=CommandGroup,
    no_args_is_help=True,
)


def run_program() -> NoReturn:
    """Run the command as a program of its own."""
    try:
        main()
    except SystemExit as ended:
        end_process(ended)


_MAX_PROBLEMS = 50
"""Maximum number of problems of an error that are printed."""


def main() -> NoReturn:
    """Run the command; a FoldmqError becomes a line for each problem, and its exit code."""
    _open_standard_streams()
    hide_secrets(sys.argv)
    defer("aiohttp", "cryptography.x509", "multidict", "nats.js", "urllib.request")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Names chosen by clients may not exist in the encoding of the terminal.
            stream.reconfigure(errors="backslashreplace")
    try:
        app(prog_name="foldmq")
    except FoldmqError as error:
        problems = [*map(str, error.args or ("",))]
        more = len(problems) - _MAX_PROBLEMS
        if more > 0:
            problems[_MAX_PROBLEMS:] = [f"and {more:,} more"]
        for problem in problems[:-1]:
            _print_error(problem)
        fail(problems[-1], error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader of the output is gone: the flush at exit must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    sys.exit(0)


def _open_standard_streams() -> None:
    """Open descriptors 0 to 2 that are closed on /dev/null.

    Otherwise sockets and files of the program would get these numbers, and its output.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            os.set_inheritable(number, True)
    # Python sets those that were closed to None.
    sys.stdin = sys.stdin or open(0, encoding="utf-8")  # noqa: SIM115 -- for the whole run
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", buffering=1)  # noqa: SIM115


def fail(message: str, exit_code: int) -> NoReturn:
    """Print ``foldmq: message`` as one line on stderr and exit."""
    # No traceback: the message must be enough for the user.
    _print_error(message)
    sys.exit(exit_code)


def _print_error(message: str) -> None:
    begin = painted("foldmq:", "red", sys.stderr)
    line = " ".join(message.split("\n"))
    if "foldmq " in line:
        from cli.logs.next_commands import completed

        line = completed(line)
    sys.stderr.write(f"{begin} {line}\n")


def _print_version(wanted: bool) -> None:
    if wanted:
        show_version()
        raise typer.Exit


@app.callback(cls=CommandGroup)
def _foldmq(
    show: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    del show


if __name__ == "__main__":
    run_program()
