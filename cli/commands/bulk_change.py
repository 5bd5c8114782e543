"""Changes to a running broker: confirmed first, requested in portions, reported at the end."""

import asyncio
import os
import pwd
import socket
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import typer

from cli.commands.command_flags import ChangeOptions
from cli.common import text
from cli.logs.broker_client import LiveBroker, NoAnswer, Refused
from cli.logs.log_brokers import LogBrokers
from eventstore.errors import UsageError
from eventstore.format.positions import format_position

PORTION = 500
"""Maximum number of names in one request."""
_PORTION_BYTES = 256 * 1024
_LISTED = 20
_REASON = 400

_About = TypeVar("_About")
_Part = TypeVar("_Part")


@dataclass(slots=True)
class ChangeResult:
    """The result of a change."""

    done: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """The failed parts, with reasons."""
    positions: dict[str, int] = field(default_factory=dict)
    """Position of the last change in each log; the name of a single log is empty."""

    def take(self, answer: dict[str, Any], log: str = "") -> None:
        """Add a broker's reply to a portion; ``log`` is the name of its log among several."""
        self.done += answer["done"]
        self.refused += [
            f"{text.name(name)}: {text.escaped(why, _REASON)}" for name, why in answer["refused"]
        ]
        if answer.get("position") is not None:
            self.positions[log] = answer["position"]

    def recorded(self) -> str:
        """Return the positions of the changes in the log, as text; empty if there are none."""
        if not self.positions or not self.done:
            return ""
        where = [
            format_position(at) + (f" of log {text.name(log)}" if log else "")
            for log, at in self.positions.items()
        ]
        return f", recorded at {', '.join(where)}"


def operator_name() -> str:
    """Return the operator for the event in the log: the user of this process at this machine."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


async def confirmed(lines: Sequence[str], what: str, manner: ChangeOptions) -> bool:
    """Show the change, ask for confirmation if required, and return whether to make it.

    ``lines`` name everything affected; a dry run prints them all and what ``what`` would do,
    without confirmation. Raises UsageError without a terminal, typer.Exit if the answer is no.
    """
    if manner.dry_run:
        for line in lines:
            sys.stdout.write(line + "\n")
        sys.stdout.flush()
        sys.stderr.write(f"foldmq: dry run, nothing was changed: would {what}\n")
        return False
    if manner.yes:
        return True
    if not sys.stdin.isatty():
        raise UsageError(f"no terminal to ask for confirmation: give --yes to {what}")
    for line in lines[:_LISTED]:
        sys.stderr.write(line + "\n")
    if len(lines) > _LISTED:
        sys.stderr.write(f"  and {len(lines) - _LISTED:,} more (--dry-run lists all)\n")
    sys.stderr.write(f"{what[0].upper()}{what[1:]}? [y/N] ")
    sys.stderr.flush()
    if (await _line_typed()).strip().casefold() in ("y", "yes"):
        return True
    sys.stderr.write("foldmq: nothing was changed\n")
    raise typer.Exit(1)


async def _line_typed() -> str:
    """Return a line typed on the terminal, while the connection to the broker is served."""
    loop = asyncio.get_running_loop()
    typed = asyncio.Event()
    loop.add_reader(sys.stdin, typed.set)
    try:
        await typed.wait()
    finally:
        loop.remove_reader(sys.stdin)
    return sys.stdin.readline()


async def change(broker: LiveBroker, what: str, result: ChangeResult, /, **request: Any) -> None:
    """Request a change; ``result`` takes the replies.

    Raises Refused, NoLiveBroker, and NoAnswer if the result is unknown.
    """
    try:
        answer = await broker.ask("change", do=what, by=operator_name(), **request)
    except NoAnswer as error:
        raise NoAnswer(f"{error}; the change may still be made") from None
    result.take(answer, broker.log)


async def find_sessions(
    brokers: LogBrokers,
    clients: Iterable[str],
    result: ChangeResult,
    about: Callable[[dict[str, Any]], _About],
) -> dict[str, _About]:
    """Return what ``about`` makes of the session of each client; add refusals to ``result``.

    Clients whose brokers do not answer are left out.
    """
    sessions: dict[str, _About] = {}
    for client in clients:
        broker = brokers.of_session(client)
        if broker not in brokers.present:
            continue
        try:
            with brokers.leaving_out(broker):
                sessions[client] = about(await broker.ask("session", client=client, most=0))
        except Refused as error:
            result.refused.append(str(error))
    return sessions


def portions(
    parts: Iterable[_Part], most: int = PORTION, most_bytes: int = _PORTION_BYTES
) -> Iterable[list[_Part]]:
    """Yield lists of at most ``most`` names, or other values, that fit into a request."""
    portion: list[_Part] = []
    size = 0
    for part in parts:
        length = len(text.json_line(part))
        if portion and (len(portion) >= most or size + length > most_bytes):
            yield portion
            portion, size = [], 0
        portion.append(part)
        size += length
    if portion:
        yield portion


def tell_all(
    brokers: LogBrokers, result: ChangeResult, verb: str, noun: str, manner: ChangeOptions
) -> None:
    """Print the result of a change in several logs, as :func:`tell` does.

    Raises NoLiveBroker if some brokers did not answer.
    """
    try:
        tell(result, verb, noun, manner)
    finally:
        brokers.check_complete()


def tell(result: ChangeResult, verb: str, noun: str, manner: ChangeOptions) -> None:
    """Print the result; raise typer.Exit if anything was refused."""
    if not manner.dry_run and (result.done or not result.refused):
        changed = text.count_of(len(result.done), noun)
        sys.stdout.write(f"{verb} {changed}{result.recorded()}\n")
        sys.stdout.flush()
    for line in result.refused:
        sys.stderr.write(f"foldmq: {line}\n")
    if result.refused:
        raise typer.Exit(1)
