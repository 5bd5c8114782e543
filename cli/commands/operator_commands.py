"""The commands for a running broker: nodes, actors, sessions, retained, subscriptions, topics."""

from typing import Annotated

import typer

from cli.commands.command_flags import (
    ActorListFlags,
    ChangeOptions,
    EraseFlags,
    Match,
    RowFlags,
    SampleFlags,
    TraceFlags,
)
from cli.common.option_groups import with_option_groups
from cli.logs.source_flags import SourceFlags, with_broker_flags
from cli.program.common_flags import Json, JsonRows
from cli.program.help_pages import Program
from eventstore.errors import UsageError

_Limit = Annotated[
    int | None, typer.Option("--limit", metavar="N", min=1, help="Print at most N rows.")
]
_ActorId = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="Actor ID, such as session:17, or client identifier of a session."
    ),
]
_ClientIds = Annotated[list[str], typer.Argument(metavar="ID...", help="Client identifiers.")]
_Cluster = Annotated[
    str | None, typer.Option("--cluster", metavar="NAME", help="Name of the cluster.")
]
_Full = Annotated[
    bool, typer.Option("--full", help="Print complete lists. [default: the first items]")
]
_NotPermitted = Annotated[
    bool,
    typer.Option("--not-permitted", help="Only those whose publishers may no longer publish them."),
]
_Age = Annotated[
    str | None,
    typer.Option(
        "--older-than", metavar="TIME", help="Only sessions offline for longer: 90s, 12h, 30d."
    ),
]

actors_app = Program(no_args_is_help=True)
sessions_app = Program(no_args_is_help=True)
retained_app = Program(no_args_is_help=True)
nodes_app = Program()


def register_operator_commands(app: Program) -> None:
    """Add the commands to the program."""
    app.add_typer(actors_app, name="actors", help="Inspect the actors of a running broker.")
    app.add_typer(sessions_app, name="sessions", help="List, show, disconnect and remove sessions.")
    app.add_typer(retained_app, name="retained", help="List, print and remove retained messages.")
    app.add_typer(nodes_app, name="nodes")
    app.command("subscriptions")(_subscriptions)
    app.command("topics")(_topics)
    app.command("reload")(_reload)
    app.command("erase")(_erase)
    app.command("confirm-clock")(_confirm_clock)


# Other commands do not load the packages that query the broker.


@nodes_app.callback(invoke_without_command=True)
@with_broker_flags
def _nodes(
    source: SourceFlags,
    context: typer.Context,
    cluster: _Cluster = None,
    as_json: JsonRows = False,
) -> None:
    """List the nodes of a cluster.

    Shows which one leads, and how far the others are.
    """
    if context.invoked_subcommand is not None:
        return
    from cli.commands import node_list

    node_list.run(source, cluster, as_json=as_json)


@nodes_app.command("move")
@with_broker_flags
def _nodes_move(
    source: SourceFlags,
    to: Annotated[
        str | None,
        typer.Argument(metavar="[NODE]", help="The node that is to lead. [default: any]"),
    ] = None,
    cluster: _Cluster = None,
    log: Annotated[
        int | None,
        typer.Option("--log", metavar="NUMBER", help="Which log, if the cluster has several."),
    ] = None,
) -> None:
    """Hand the leadership over to another node.

    The leader writes everything, closes its clients and follows. Clients that connect
    meanwhile wait.
    """
    from cli.commands import node_list

    node_list.move_leadership(source, cluster, to or "", log)


@actors_app.command("ls")
@with_broker_flags
@with_option_groups
def _actors_ls(
    source: SourceFlags, selection: ActorListFlags, rows: RowFlags, as_json: JsonRows = False
) -> None:
    """List the actors.

    Sort keys: busy, recent, handled, mailbox, high_water, last_active, id, name, state, type.
    """
    from cli.commands import actor_list

    actor_list.run_actors(source, selection, rows, as_json=as_json)


@actors_app.command("tree")
@with_broker_flags
def _actors_tree(
    source: SourceFlags,
    children: Annotated[
        int,
        typer.Option(
            "--children", metavar="N", min=1, help="Maximum number of children shown of each actor."
        ),
    ] = 20,
    as_json: Json = False,
) -> None:
    """Show the supervision tree."""
    from cli.commands import actor_list

    actor_list.run_actor_tree(source, children, as_json=as_json)


@actors_app.command("show")
@with_broker_flags
def _actors_show(
    source: SourceFlags,
    which: _ActorId,
    full: _Full = False,
    as_json: Json = False,
) -> None:
    """Show an actor in full.

    Its state, subscriptions, deliveries in flight and queued, will, connection and traffic.
    """
    from cli.commands import actor_page

    actor_page.run_actor(source, which, full=full, as_json=as_json)


@actors_app.command("tail")
@with_broker_flags
@with_option_groups
def _actors_tail(source: SourceFlags, trace: TraceFlags, as_json: JsonRows = False) -> None:
    """Show a live trace of messages, packets and events.

    Traces what an actor receives, sends and writes to the log; all actors of a client, even if it
    is not connected yet; or the deliveries of messages on matching topics.
    """
    from cli.commands import tail

    target = tail.trace_target(trace.which, trace.client, trace.topic)
    tail.run_tail(source, target, trace.rate, trace.count, as_json=as_json)


@actors_app.command("kick")
@with_broker_flags
@with_option_groups
def _actors_kick(
    source: SourceFlags,
    which: Annotated[
        str,
        typer.Argument(
            metavar="ID", help="Client identifier, or actor ID of its session or connection."
        ),
    ],
    manner: ChangeOptions,
) -> None:
    """Disconnect a client.

    A persistent session is kept. The will is published.
    """
    from cli.commands import kick

    kick.kick_actor(source, which, manner)


@actors_app.command("restart")
@with_broker_flags
@with_option_groups
def _actors_restart(
    source: SourceFlags,
    which: _ActorId,
    manner: ChangeOptions,
) -> None:
    """Restart an actor as after a failure.

    The state of a session is rebuilt from the log; its client is disconnected.
    """
    from cli.commands import kick

    kick.restart(source, which, manner)


@sessions_app.command("ls")
@with_broker_flags
@with_option_groups
def _sessions_ls(
    source: SourceFlags,
    rows: RowFlags,
    connected: Annotated[
        bool | None,
        typer.Option(
            "--connected/--offline",
            help="Only connected or only offline sessions.",
            show_default=False,
        ),
    ] = None,
    older_than: _Age = None,
    as_json: JsonRows = False,
) -> None:
    """List the sessions.

    Drops, reconnects and takeovers are counted across restarts; foldmq sessions show says since
    when. Sort keys: queued, bytes (of the queue), in_flight, subscriptions, dropped, connects,
    takeovers, rate (messages in and out per second), rate_in, rate_out, offline, client.
    """
    from cli.commands import session_list

    session_list.run_sessions(
        source, rows.match, connected, older_than, rows.sort, rows.limit, as_json=as_json
    )


@sessions_app.command("show")
@with_broker_flags
def _sessions_show(
    source: SourceFlags,
    client: Annotated[str, typer.Argument(metavar="ID", help="Client identifier.")],
    full: _Full = False,
    as_json: Json = False,
) -> None:
    """Show a session in full.

    Its subscriptions, deliveries in flight and queued, will, connection and traffic.
    """
    from cli.commands import actor_page

    actor_page.run_session(source, client, full=full, as_json=as_json)


@sessions_app.command("kick")
@with_broker_flags
@with_option_groups
def _sessions_kick(
    source: SourceFlags,
    clients: _ClientIds,
    manner: ChangeOptions,
) -> None:
    """Disconnect clients.

    Persistent sessions are kept. Wills are published.
    """
    from cli.commands import kick

    kick.kick(source, clients, manner)


@sessions_app.command("rm")
@with_broker_flags
@with_option_groups
def _sessions_rm(
    source: SourceFlags,
    clients: _ClientIds,
    manner: ChangeOptions,
) -> None:
    """Remove sessions with their subscriptions and queues.

    Connected clients are disconnected.
    """
    from cli.commands import remove

    remove.remove(source, clients, manner)


@sessions_app.command("purge")
@with_broker_flags
@with_option_groups
def _sessions_purge(
    source: SourceFlags,
    *,
    older_than: _Age = None,
    match: Match = None,
    manner: ChangeOptions,
) -> None:
    """Remove offline sessions.

    Select them by --older-than, by --match, or by both. Sessions whose clients connect meanwhile
    are kept.
    """
    from cli.commands import remove

    remove.purge(source, older_than, match, manner)


@retained_app.command("ls")
@with_broker_flags
def _retained_ls(
    source: SourceFlags,
    topic_filter: Annotated[
        str, typer.Argument(metavar="FILTER", help="Only matching topics.", show_default=True)
    ] = "#",
    not_permitted: _NotPermitted = False,
    limit: _Limit = None,
    as_json: JsonRows = False,
) -> None:
    """List retained messages."""
    from cli.commands import retained

    retained.run_list(source, topic_filter, limit, not_permitted=not_permitted, as_json=as_json)


@retained_app.command("get")
@with_broker_flags
def _retained_get(
    source: SourceFlags,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic.")],
    no_newline: Annotated[
        bool, typer.Option("-N", "--no-newline", help="Do not print a newline after the payload.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Print the payload of a retained message.

    Unchanged, with a newline; on a terminal control characters are escaped.
    """
    from cli.commands import retained

    retained.run_get(source, topic, newline=not no_newline, as_json=as_json)


@retained_app.command("rm")
@with_broker_flags
@with_option_groups
def _retained_rm(
    source: SourceFlags,
    *,
    topic_filter: Annotated[
        str | None,
        typer.Argument(metavar="FILTER", help="Topic or topic filter.", show_default=False),
    ] = None,
    not_permitted: _NotPermitted = False,
    manner: ChangeOptions,
) -> None:
    """Remove retained messages."""
    from cli.commands import remove

    remove.clear(source, topic_filter, manner, not_permitted=not_permitted)


@with_broker_flags
@with_option_groups
def _subscriptions(source: SourceFlags, sample: SampleFlags, as_json: Json = False) -> None:
    """Show how a message on a topic would be delivered.

    For each matching subscription: sent, queued, dropped or denied, and why.
    """
    from cli.commands import receivers

    receivers.run_receivers(source, sample.topic, sample.qos, sample.size, as_json=as_json)


@with_broker_flags
def _topics(
    source: SourceFlags,
    unheard: Annotated[
        bool, typer.Option("--unheard", help="Only topics that no subscription matches.")
    ] = False,
    seconds: Annotated[
        float,
        typer.Option(
            "--seconds", metavar="SECONDS", min=0.5, max=60, help="How long to count messages."
        ),
    ] = 5.0,
    limit: _Limit = None,
    as_json: JsonRows = False,
) -> None:
    """List the topics that messages are published on.

    Counts the messages of all QoS for some seconds, of large batches a sample. For the past there
    is 'foldmq log usage --unheard'.
    """
    from cli.commands import topic_list

    topic_list.run_topics(source, seconds, limit, unheard=unheard, as_json=as_json)


@with_broker_flags
def _reload(source: SourceFlags) -> None:
    """Make a running broker read its settings again.

    Users, permissions, certificates, limits and other settings take effect, as at SIGHUP. If
    anything is invalid, the previous settings stay in effect, and the command exits with 1. Of a
    broker with several processes each answers.
    """
    from cli.commands import reload

    reload.reload_settings(source)


@with_broker_flags
@with_option_groups
def _erase(
    source: SourceFlags,
    scope: EraseFlags,
    manner: ChangeOptions,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the list, or the result of the check, as JSON.")
    ] = False,
) -> None:
    """Erase the contents of personal topics, or the name of a client or user, for ever.

    --topic destroys the keys of all topics that match and that personal_topics has sealed: payloads
    and properties can no longer be read anywhere, also not in archives and backups of the log.
    Names of topics stay. --client and --user destroy the key of a name that personal_clients or
    personal_users replaced by a token: nothing can tell any more whose token it was. Sessions of
    that client or user end, without their wills.

    A key of a topic is used for a period, a 30th of personal_keep or 30 days: --before erases whole
    periods, and says what remains until when. Exits with 1 if no such topic matches, or --check
    found the text; with 2 if a name has no token; with 74 if --check found nothing, but could not
    search everything.
    """
    from cli.commands import erase, erase_check, erase_list

    scopes = (scope.topic, scope.client, scope.user, scope.check)
    if [scope.lists, *(each is not None for each in scopes)].count(True) != 1:
        raise UsageError("give one of --topic, --client, --user, --list and --check")
    if scope.places and scope.check is None:
        raise UsageError("--in is for --check")
    if scope.before is not None and scope.topic is None:
        raise UsageError("--before is for --topic")
    if scope.check is not None:
        erase_check.check(source, scope.check, scope.places or (), as_json=as_json)
    elif scope.lists:
        erase_list.list_erasures(source, as_json=as_json)
    elif as_json:
        raise UsageError("--json is for --list and --check")
    elif scope.topic is not None:
        erase.erase(source, scope.topic, scope.before, manner)
    elif scope.client is not None:
        erase.erase_name(source, "client", scope.client, manner)
    else:
        erase.erase_name(source, "user", scope.user or "", manner)


@with_broker_flags
def _confirm_clock(source: SourceFlags) -> None:
    """Say that the clock is right: the time off before the last start counts.

    A start more than max_clock_gap after the last record of the log does not count that time, as
    the clock may be wrong. Confirming removes the sessions that were offline before the start and
    have expired by the clock. The others keep the time that they had left. Exits with 1 if all
    time counts already.
    """
    from cli.commands import reload

    reload.confirm_clock(source)
