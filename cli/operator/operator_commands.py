"""The commands that look into a running broker: actors, sessions, retained, subscriptions."""

from typing import Annotated

import typer

from cli.logsource import SourceFlags, with_broker_flags

_Match = Annotated[
    str | None,
    typer.Option("--match", metavar="GLOB", help="Names like this: 'pump-*', '?', '[ab]'."),
]
_Sort = Annotated[
    str | None, typer.Option("--sort", metavar="KEY", help="Order; numbers from the highest on.")
]
_Limit = Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="Print at most N.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_JsonLines = Annotated[bool, typer.Option("--json", help="Print a JSON object for each.")]
_Full = Annotated[
    bool, typer.Option("--full", help="All of the lists, however long. [default: their beginning]")
]
_Yes = Annotated[bool, typer.Option("-y", "--yes", help="Do not ask first.")]
_DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be done; nothing is changed.")
]
_Age = Annotated[
    str | None,
    typer.Option("--older-than", metavar="TIME", help="Offline for longer: 90s, 12h, 30d."),
]

actors_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, add_completion=False)
sessions_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, add_completion=False)
retained_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, add_completion=False)


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.add_typer(actors_app, name="actors", help="Look into the actors of a running broker.")
    app.add_typer(sessions_app, name="sessions", help="List, show, end and remove sessions.")
    app.add_typer(retained_app, name="retained", help="List, get and remove retained messages.")
    app.command("subscriptions")(_subscriptions)
    app.command("top")(_top)


# The packages that ask the broker are not loaded for the other commands.


@actors_app.command("ls")
@with_broker_flags
def _actors_ls(
    source: SourceFlags,
    kind: Annotated[
        str | None,
        typer.Option(
            "--type", metavar="TYPE", help="broker, inspector, session, connection or subscription."
        ),
    ] = None,
    match: _Match = None,
    state: Annotated[
        str | None,
        typer.Option(
            "--state",
            metavar="STATE",
            help="Sessions: connected, offline, loading, rebuilding; connections: connecting, "
            "open, paused, closing; others: running.",
        ),
    ] = None,
    client: Annotated[
        str | None, typer.Option("--client", metavar="ID", help="What works for this client.")
    ] = None,
    sort: _Sort = None,
    limit: _Limit = None,
    as_json: _JsonLines = False,
) -> None:
    """List the actors.

    Sorted by busy, recent, handled, mailbox, high_water, last_active, id, name, state or type.
    """
    from cli.inspection import actor_list

    wanted = {"type": kind, "match": match, "state": state, "client": client}
    actor_list.run(source, wanted, sort, limit, as_json=as_json)


@actors_app.command("tree")
@with_broker_flags
def _actors_tree(
    source: SourceFlags,
    children: Annotated[
        int,
        typer.Option("--children", metavar="N", min=1, help="How many are shown below each."),
    ] = 20,
    as_json: _Json = False,
) -> None:
    """Show the tree of supervision."""
    from cli.inspection import actor_tree

    actor_tree.run(source, children, as_json=as_json)


@actors_app.command("show")
@with_broker_flags
def _actors_show(
    source: SourceFlags,
    which: Annotated[
        str, typer.Argument(metavar="ID", help="Actor, as session:17, or client: its session.")
    ],
    full: _Full = False,
    as_json: _Json = False,
) -> None:
    """Show all of an actor.

    State, subscriptions, what is in flight and queued, will, connection and its traffic.
    """
    from cli.inspection import actor_page

    actor_page.run(source, which, full=full, as_json=as_json)


@actors_app.command("tail")
@with_broker_flags
def _actors_tail(
    source: SourceFlags,
    which: Annotated[
        str | None, typer.Argument(metavar="ID", help="Actor, such as session:17.")
    ] = None,
    client: Annotated[
        str | None,
        typer.Option("--client", metavar="ID", help="All that works for a client, also later."),
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option("--topic", metavar="FILTER", help="Messages on such topics, and their way."),
    ] = None,
    rate: Annotated[
        int | None,
        typer.Option(
            "--rate", metavar="N", min=1, max=5000, help="Lines a second at most. [default: 500]"
        ),
    ] = None,
    count: Annotated[
        int | None, typer.Option("-n", metavar="COUNT", min=1, help="End after COUNT lines.")
    ] = None,
    as_json: _JsonLines = False,
) -> None:
    """Watch what happens: messages, packets and events, live.

    What an actor gets, sends and appends to the log; all of a client's actors, whether it is
    connected or not yet; or what becomes of the messages on some topics.
    """
    from cli.inspection import tail

    tail.run(source, tail.target(which, client, topic), rate, count, as_json=as_json)


@actors_app.command("kick")
@with_broker_flags
def _actors_kick(
    source: SourceFlags,
    which: Annotated[
        str, typer.Argument(metavar="ID", help="Client, or its session or connection.")
    ],
    yes: _Yes = False,
    dry_run: _DryRun = False,
) -> None:
    """Disconnect a client.

    Its session stays if it is persistent; its will is published.
    """
    from cli.operator import bulk_change, kick

    kick.kick_actor(source, which, bulk_change.Manner(yes, dry_run))


@actors_app.command("restart")
@with_broker_flags
def _actors_restart(
    source: SourceFlags,
    which: Annotated[
        str, typer.Argument(metavar="ID", help="Actor, as session:17, or client: its session.")
    ],
    yes: _Yes = False,
    dry_run: _DryRun = False,
) -> None:
    """Replace an actor as if it had failed.

    The state of a session is rebuilt from the log; its client is disconnected.
    """
    from cli.operator import bulk_change, kick

    kick.restart(source, which, bulk_change.Manner(yes, dry_run))


@sessions_app.command("ls")
@with_broker_flags
def _sessions_ls(
    source: SourceFlags,
    match: _Match = None,
    connected: Annotated[
        bool | None, typer.Option("--connected/--offline", help="Only these.", show_default=False)
    ] = None,
    older_than: _Age = None,
    sort: _Sort = None,
    limit: _Limit = None,
    as_json: _JsonLines = False,
) -> None:
    """List the sessions.

    Sorted by queued, queued_bytes, inflight, subscriptions, offline or client.
    """
    from cli.inspection import session_list

    session_list.run(source, match, connected, older_than, sort, limit, as_json=as_json)


@sessions_app.command("show")
@with_broker_flags
def _sessions_show(
    source: SourceFlags,
    client: Annotated[str, typer.Argument(metavar="ID", help="Client id.")],
    full: _Full = False,
    as_json: _Json = False,
) -> None:
    """Show all of a session.

    Subscriptions, what is in flight and queued, will, connection and its traffic.
    """
    from cli.inspection import actor_page

    actor_page.run_session(source, client, full=full, as_json=as_json)


@sessions_app.command("kick")
@with_broker_flags
def _sessions_kick(
    source: SourceFlags,
    clients: Annotated[list[str], typer.Argument(metavar="ID...", help="Client ids.")],
    yes: _Yes = False,
    dry_run: _DryRun = False,
) -> None:
    """Disconnect clients.

    Their sessions stay if they are persistent; their wills are published.
    """
    from cli.operator import bulk_change, kick

    kick.kick(source, clients, bulk_change.Manner(yes, dry_run))


@sessions_app.command("rm")
@with_broker_flags
def _sessions_rm(
    source: SourceFlags,
    clients: Annotated[list[str], typer.Argument(metavar="ID...", help="Client ids.")],
    yes: _Yes = False,
    dry_run: _DryRun = False,
) -> None:
    """Remove sessions with all they hold.

    Clients that are connected are disconnected.
    """
    from cli.operator import bulk_change, remove

    remove.remove(source, clients, bulk_change.Manner(yes, dry_run))


@sessions_app.command("purge")
@with_broker_flags
def _sessions_purge(
    source: SourceFlags,
    older_than: _Age = None,
    match: _Match = None,
    yes: _Yes = False,
    dry_run: _DryRun = False,
) -> None:
    """Remove sessions that are offline.

    By age, by name or by both: one must be given. Sessions that come back meanwhile stay.
    """
    from cli.operator import bulk_change, remove

    remove.purge(source, older_than, match, bulk_change.Manner(yes, dry_run))


@retained_app.command("ls")
@with_broker_flags
def _retained_ls(
    source: SourceFlags,
    topic_filter: Annotated[
        str, typer.Argument(metavar="FILTER", help="Topic filter.", show_default=True)
    ] = "#",
    limit: _Limit = None,
    as_json: _JsonLines = False,
) -> None:
    """List retained messages."""
    from cli.inspection import retained

    retained.run_list(source, topic_filter, limit, as_json=as_json)


@retained_app.command("get")
@with_broker_flags
def _retained_get(
    source: SourceFlags,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic.")],
    no_newline: Annotated[
        bool, typer.Option("-N", "--no-newline", help="Nothing behind the payload.")
    ] = False,
    as_json: _Json = False,
) -> None:
    """Write the payload of a retained message to stdout.

    As it is, and a newline; on a terminal control characters are escaped.
    """
    from cli.inspection import retained

    retained.run_get(source, topic, newline=not no_newline, as_json=as_json)


@retained_app.command("rm")
@with_broker_flags
def _retained_rm(
    source: SourceFlags,
    topic_filter: Annotated[str, typer.Argument(metavar="FILTER", help="Topic or filter.")],
    yes: _Yes = False,
    dry_run: _DryRun = False,
) -> None:
    """Remove retained messages."""
    from cli.operator import bulk_change, remove

    remove.clear(source, topic_filter, bulk_change.Manner(yes, dry_run))


@with_broker_flags
def _subscriptions(
    source: SourceFlags,
    topic: Annotated[str, typer.Option("--topic", metavar="TOPIC", help="A topic, no filter.")],
    as_json: _Json = False,
) -> None:
    """Show which clients would get a message on a topic, and why."""
    from cli.inspection import receivers

    receivers.run(source, topic, as_json=as_json)


@with_broker_flags
def _top(
    source: SourceFlags,
    interval: Annotated[
        float,
        typer.Option("--interval", metavar="SECONDS", min=0.5, max=3600, help="Between two polls."),
    ] = 2.0,
    sort: Annotated[
        str,
        typer.Option(
            "--sort",
            metavar="KEY",
            help="Actors by recent, busy, handled, mailbox, high_water or last_active.",
        ),
    ] = "recent",
    once: Annotated[
        bool, typer.Option("--once", help="Print one frame, made of two polls, and end.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --once: print JSON.")] = False,
) -> None:
    """Watch a running broker: rates, latencies, busiest actors and topics, what waits.

    Keys are shown at the bottom; '?' explains them and the figures.
    """
    from cli.top import top_command

    top_command.run(source, interval, sort, once=once, as_json=as_json)
