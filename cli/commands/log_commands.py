"""The commands that read the log, and those that copy it."""

from pathlib import Path
from typing import Annotated

import typer

from cli.logs.source_flags import SourceFlags, with_source_flags
from cli.program.common_flags import At, End, Json, JsonMessages, Start
from cli.program.help_pages import Program

_Session = Annotated[str | None, typer.Option("--session", metavar="ID", help="One session only.")]
_KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--encryption-key-file",
        metavar="FILE",
        envvar="FOLDMQ_ENCRYPTION_KEY_FILE",
        help="Key of what is read, if that is encrypted, and of NEWDIR.",
    ),
]
_NewKeyFile = Annotated[
    Path | None,
    typer.Option("--new-key-file", metavar="FILE", help="Another key for NEWDIR."),
]

log_app = Program()


def register_log_commands(app: Program) -> None:
    """Add the commands to the program."""
    app.add_typer(log_app, name="log")
    app.command("replay")(_replay)
    app.command("diff")(_diff)
    app.command("verify")(_attest)
    app.command("why")(_why)
    app.command("history")(_history)
    app.command("backup")(_backup)
    app.command("restore")(_restore)
    app.command("salvage")(_salvage)


# The packages that read the log are not loaded for the other commands.


@log_app.callback(invoke_without_command=True)
@with_source_flags
def _log(
    source: SourceFlags,
    context: typer.Context,
    session: _Session = None,
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic", metavar="FILTER", help="Only events about messages on matching topics."
        ),
    ] = None,
    types: Annotated[
        list[str] | None,
        typer.Option("--type", metavar="TYPE", help="Only events of this type. May be repeated."),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="POS|TIME", help="Start at this point: 12, 12.3, '10m ago', ..."
        ),
    ] = None,
    end: End = None,
    count: Annotated[
        int | None,
        typer.Option(
            "-n",
            metavar="COUNT",
            min=1,
            help="Only the last COUNT events, or with --from the first COUNT. Without -n, --from "
            "and --to: 50, or all with --json.",
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Follow: print new events as they are written.")
    ] = False,
    payload: Annotated[bool, typer.Option("--payload", help="Show payloads.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per event.")
    ] = False,
) -> None:
    """List the events of the log.

    'log verify' checks its integrity. Works with and without a running broker, and only reads.
    Moments are positions (12, 12.3) or times ('2026-11-20 09:30', 09:30, '10m ago').
    Several logs are merged by time, unless --node names one.
    """
    if context.invoked_subcommand is not None:
        context.obj = source
        return
    from cli.commands import log_events

    selection = log_events.event_selection(
        session, topic, types or (), (start, end), count, follow=follow, brief=not as_json
    )
    log_events.run_events(source, selection, as_json=as_json, payload=payload)


@log_app.command("verify")
@with_source_flags
def _verify(source: SourceFlags, context: typer.Context, as_json: Json = False) -> None:
    """Check the integrity of the log.

    Is it what was written? All records must be present, in order, intact and readable. Prints each
    problem with its record. Exits with 1 if there are any. 'foldmq audit' checks what the events
    say. Checks all logs of a broker, unless --node names one.
    """
    from cli.commands import verify_log

    outer = context.obj
    flags = source.over(outer) if isinstance(outer, SourceFlags) else source
    if not verify_log.run_verify_log(flags, as_json=as_json):
        raise typer.Exit(1)


@log_app.command("usage")
@with_source_flags
def _usage(
    source: SourceFlags,
    context: typer.Context,
    by: Annotated[str, typer.Option("--by", metavar="KEY", help="topic or client.")] = "topic",
    levels: Annotated[
        int,
        typer.Option(
            "--levels", metavar="N", min=1, max=65_536, help="Number of topic levels to group by."
        ),
    ] = 2,
    top: Annotated[
        int, typer.Option("--top", metavar="N", min=1, help="Number of lines to print.")
    ] = 20,
    start: Start = None,
    end: End = None,
    unheard: Annotated[
        bool,
        typer.Option(
            "--unheard", help="Only topics that no subscription matches at the end; all levels."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Show which topics or clients use the disk.

    Payloads and properties count for their message, the rest of each record is divided equally
    among its entries. At most 10,000 topics are told apart. Reads the whole log, or the part from
    --from to --to. Of a broker with several logs all are added up, unless --node names one.
    """
    from cli.commands import log_usage

    outer = context.obj
    flags = source.over(outer) if isinstance(outer, SourceFlags) else source
    log_usage.run_usage(flags, by, levels, top, (start, end), unheard=unheard, as_json=as_json)


@log_app.command("index")
@with_source_flags
def _index(
    source: SourceFlags,
    context: typer.Context,
    child: Annotated[bool, typer.Option("--child", hidden=True)] = False,
) -> None:
    """Bring the index of the log up to date.

    'foldmq serve' does this while it runs. The index makes why, log, replay and the web page fast.
    It is in the data directory, and is rebuilt if it is missing, damaged or of another log.
    """
    from cli.logs import index_process

    outer = context.obj
    flags = source.over(outer) if isinstance(outer, SourceFlags) else source
    index_process.run_index(flags, child=child)


@with_source_flags
def _replay(
    source: SourceFlags,
    at: At = None,
    session: Annotated[
        str | None, typer.Option("--session", metavar="ID", help="Show one session in full.")
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic", metavar="FILTER", help="Show the retained messages on matching topics."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the state of the broker at any point in time.

    Prints totals, one session, or retained messages. The state is rebuilt from the log by the same
    code as at a start of the broker; the log is only read. With several logs their states are
    joined, unless --node names one.
    """
    from cli.commands import replay

    replay.run_replay(source, at, session, topic, as_json=as_json)


@with_source_flags
def _diff(
    source: SourceFlags,
    before: Annotated[str, typer.Argument(metavar="A", help="Earlier point in time.")],
    after: Annotated[str, typer.Argument(metavar="B", help="Later point in time.")],
    session: _Session = None,
    as_json: Json = False,
) -> None:
    """Show the differences between the states at two points in time.

    With several logs the points are times, unless --node names a log.
    """
    from cli.commands import diff

    diff.run_diff(source, before, after, session, as_json=as_json)


@with_source_flags
def _attest(
    source: SourceFlags,
    session: _Session = None,
    stored: Annotated[
        bool,
        typer.Option(
            "--stored", help="Check only the stored projections; needs no running broker."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Compare the running broker with its log.

    Does it have the state of its log now? Rebuilds the state from the log, which is only read, and
    compares it with the broker's memory and with the stored projections. Exits with 1 if anything
    differs, and prints the first position where the states diverge. 'log verify' checks the log
    itself, 'audit' what happened. With several logs each is compared with its broker, unless --node
    names one.
    """
    from cli.commands import verify_state

    if not verify_state.run_verify_state(source, session, stored=stored, as_json=as_json):
        raise typer.Exit(1)


@with_source_flags
def _why(
    source: SourceFlags,
    client: Annotated[
        str | None,
        typer.Option(
            "--client", metavar="ID", help="Client identifier of the receiver. [default: all]"
        ),
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic", metavar="FILTER", help="Explain the latest message on matching topics."
        ),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option("--position", metavar="POS", help="Explain the message at this position."),
    ] = None,
    last: Annotated[
        int,
        typer.Option(
            "--last",
            metavar="N",
            min=1,
            help="With --topic: explain the latest N messages. [default: 1]",
            show_default=False,
        ),
    ] = 1,
    when: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="WHEN",
            help="With --topic: explain the latest message until this point.",
        ),
    ] = None,
    origin: Annotated[
        str | None,
        typer.Option(
            "--origin",
            metavar="LOG",
            help="With --position: the position is in this log of another foldmq, from which a "
            "connection brought the message.",
        ),
    ] = None,
    as_json: JsonMessages = False,
) -> None:
    """Explain what happened to a message.

    Shows its publisher, the subscriptions it matched, and each step of its delivery. The log is
    only read.
    """
    from cli.commands import why

    why.run_why(source, client, topic, where, last, when, origin, as_json=as_json)


@with_source_flags
def _history(
    source: SourceFlags,
    topic_filter: Annotated[str, typer.Argument(metavar="FILTER", help="Topic filter.")],
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="WHEN",
            help="Start here: 10m, 09:30, '2026-11-20 09:30', after 12.3, all, new or last.",
        ),
    ] = None,
    end: Annotated[str | None, typer.Option("--to", metavar="WHEN", help="End here.")] = None,
    last: Annotated[
        bool, typer.Option("--last", help="Only the last message on each topic.")
    ] = False,
    count: Annotated[
        int | None,
        typer.Option(
            "-n",
            metavar="COUNT",
            min=1,
            help="Only the last COUNT messages, or with --from the first COUNT. Without -n, --from "
            "and --to: 50, or all with --json.",
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Follow: print new messages as they come.")
    ] = False,
    without: Annotated[bool, typer.Option("--no-payloads", help="Leave payloads out.")] = False,
    as_json: JsonMessages = False,
) -> None:
    """List the messages of the past on matching topics.

    Each with its position, which as --from goes on after it. Messages at QoS 2 are listed where
    they took effect. The log has no messages at QoS 0 unless they were retained. Works with and
    without a running broker, and only reads. Several logs are merged by time, unless --node names
    one.
    """
    from cli.commands import history

    query = history.history_query(
        topic_filter, (start, end), count, last=last, follow=follow, brief=not as_json
    )
    history.run_history(source, query, as_json=as_json, payloads=not without)


@with_source_flags
def _backup(
    source: SourceFlags,
    target: Annotated[
        str, typer.Argument(metavar="DIR", help="Directory of the backup; -: a tar archive.")
    ],
) -> None:
    """Back up the log of a broker, running or not.

    Every record is checked. A directory with an earlier backup of the log gets only the records
    that it does not have. With -, a tar archive is written to the standard output.
    """
    from cli.commands import backup

    backup.run_backup(source, target)


def _restore(
    source: Annotated[
        str, typer.Argument(metavar="FROM", help="Directory of the backup, tar archive, or -.")
    ],
    data_dir: Annotated[
        Path, typer.Option("--data-dir", metavar="NEWDIR", help="Data directory to create.")
    ],
    new_node: Annotated[
        bool,
        typer.Option("--new-node", help="Restore as another node, to run beside the original one."),
    ] = False,
    key_file: _KeyFile = None,
    new_key_file: _NewKeyFile = None,
    personal_key_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --new-node: the keys of personal topics."),
    ] = None,
    new_personal_key_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Copy of --personal-key-file to make for the new node."),
    ] = None,
) -> None:
    """Restore a backup into a new data directory.

    Every record is checked. With -, a tar archive is read from the standard input.
    """
    from cli.commands import backup

    backup.run_restore(
        source,
        data_dir,
        new_node=new_node,
        key_file=key_file,
        new_key_file=new_key_file,
        personal_keys=(personal_key_file, new_personal_key_file),
    )


def _salvage(
    data_dir: Annotated[
        Path, typer.Option("--data-dir", metavar="DIR", help="Data directory with the damaged log.")
    ],
    to: Annotated[Path, typer.Option("--to", metavar="NEWDIR", help="Data directory to create.")],
    key_file: _KeyFile = None,
    new_key_file: _NewKeyFile = None,
) -> None:
    """Copy what can be proven of a damaged log.

    Creates a new data directory; the damaged one is only read. Records that are lost are given up,
    and the new log says which; all others are kept. With --encryption-key-file it is encrypted:
    so the copy of an intact log replaces one that is not.
    """
    from cli.commands import salvage

    salvage.run_salvage(data_dir, to, key_file, new_key_file)
