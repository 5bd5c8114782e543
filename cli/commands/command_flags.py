"""The flags of commands that have many, or share them: the text below a flag is its help."""

from dataclasses import dataclass
from typing import Annotated

import typer

Match = Annotated[
    str | None,
    typer.Option(
        "--match", metavar="GLOB", help="Only names that match a pattern: 'pump-*', '?', '[ab]'."
    ),
]


@dataclass(frozen=True, slots=True)
class ChangeOptions:
    """Options of a change."""

    yes: Annotated[bool, typer.Option("-y", "--yes")] = False
    """Do not ask for confirmation."""
    dry_run: Annotated[bool, typer.Option("--dry-run")] = False
    """Show what would be done without changing anything."""


@dataclass(frozen=True, slots=True)
class RowFlags:
    """The rows of a list, and their order."""

    match: Match = None
    sort: Annotated[str | None, typer.Option("--sort", metavar="KEY")] = None
    """Sort key; numbers sort from highest to lowest."""
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=1)] = None
    """Print at most N rows."""


@dataclass(frozen=True, slots=True)
class ActorListFlags:
    """The actors of a list."""

    type: Annotated[str | None, typer.Option("--type", metavar="TYPE")] = None
    """Only this type: broker, inspector, session, sharedsession, connection, subscription, bridge,
    logexchange, fanout, replaywork or turnwork."""
    state: Annotated[str | None, typer.Option("--state", metavar="STATE")] = None
    """Only this state. Sessions: connected, offline, loading, rebuilding; connections: connecting,
    open, paused, closing; others: running."""
    client: Annotated[str | None, typer.Option("--client", metavar="ID")] = None
    """Only actors of this client."""


@dataclass(frozen=True, slots=True)
class TraceFlags:
    """The target of a trace, and its bounds."""

    which: Annotated[str | None, typer.Argument(metavar="ID")] = None
    """Actor ID, such as session:17."""
    client: Annotated[str | None, typer.Option("--client", metavar="ID")] = None
    """All actors of a client, also future ones."""
    topic: Annotated[str | None, typer.Option("--topic", metavar="FILTER")] = None
    """Messages on matching topics and their deliveries."""
    rate: Annotated[int | None, typer.Option("--rate", metavar="N", min=1, max=5000)] = None
    """Maximum number of lines per second. [default: 500]"""
    count: Annotated[int | None, typer.Option("-n", metavar="COUNT", min=1)] = None
    """Exit after COUNT lines."""


@dataclass(frozen=True, slots=True)
class SampleFlags:
    """A message whose deliveries are previewed."""

    topic: Annotated[str, typer.Option("--topic", metavar="TOPIC")]
    """Topic, without wildcards."""
    qos: Annotated[int, typer.Option("-q", "--qos", metavar="QOS", min=0, max=2)] = 1
    """QoS of the message."""
    size: Annotated[int | None, typer.Option("--size", metavar="BYTES", min=0)] = None
    """Size of its payload; by default the mean of the messages that wait for the client."""


@dataclass(frozen=True, slots=True)
class EraseFlags:
    """What to erase, to list or to search."""

    topic: Annotated[str | None, typer.Option("--topic", metavar="FILTER")] = None
    """Erase the contents of matching topics."""
    client: Annotated[str | None, typer.Option("--client", metavar="ID")] = None
    """Erase a client identifier with a token."""
    user: Annotated[str | None, typer.Option("--user", metavar="NAME")] = None
    """Erase a user name with a token."""
    before: Annotated[str | None, typer.Option("--before", metavar="TIME")] = None
    """Only contents of periods that ended before: '2026-11-21 14:00', '30d ago'."""
    lists: Annotated[bool, typer.Option("--list")] = False
    """List the erasures in the log, and who requested them."""
    check: Annotated[str | None, typer.Option("--check", metavar="TEXT")] = None
    """Search all files of the data directory for a text, in all forms; -: read it from stdin."""
    places: Annotated[list[str] | None, typer.Option("--in", metavar="PATH")] = None
    """Also search a backup, an archive or a log file."""
