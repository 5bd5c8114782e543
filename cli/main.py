"""The ``foldmq`` command."""

import io
import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from cli.common import argv_secrets, version
from cli.history import log_commands
from cli.operator import operator_commands as operatorcommands
from cli.settings import with_settings_flags
from cli.sparkjobs import spark_commands as sparkcommands
from cli.users import acl_command, passwd_command
from cli.web import web_command as webcommand
from protocol.errors import FoldmqError

app = typer.Typer(
    name="foldmq",
    help="A crash-safe MQTT broker: it acknowledges a message when the message is on disk.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Host = Annotated[str, typer.Option("-h", "--host", metavar="HOST", help="Host of the broker.")]
Port = Annotated[
    int | None,
    typer.Option(
        "-p",
        "--port",
        metavar="PORT",
        min=1,
        max=65535,
        help="Port of the broker. [default: 1883, with TLS 8883]",
    ),
]
Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        envvar="FOLDMQ_URL",
        show_envvar=False,
        help="URL of the broker, instead of host, port, user and password: "
        "mqtt://user:password@host:port, or mqtts, ws, wss. [env var: FOLDMQ_URL]",
    ),
]
CaFile = Annotated[
    Path | None,
    typer.Option(
        "--cafile",
        metavar="FILE",
        help="CA certificates that the broker's certificate is verified against (TLS).",
    ),
]
Cert = Annotated[
    Path | None, typer.Option("--cert", metavar="FILE", help="Client certificate (TLS).")
]
Key = Annotated[
    Path | None,
    typer.Option("--key", metavar="FILE", help="Private key of the client certificate."),
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure", help="Do not verify that the broker's certificate matches the host name."
    ),
]
Username = Annotated[
    str | None, typer.Option("-u", "--username", metavar="USER", help="User name.")
]
Password = Annotated[
    str | None,
    typer.Option(
        "-P",
        "--pw",
        "--password",
        metavar="PASSWORD",
        envvar="FOLDMQ_PASSWORD",
        help="Password; the environment variable is safer.",
    ),
]
ClientId = Annotated[
    str | None, typer.Option("-i", "--id", metavar="ID", help="Client ID. [default: a random one]")
]
Keep = Annotated[
    bool,
    typer.Option(
        "-c",
        "--keep-session",
        help="Keep the session after the connection ends (clean session = 0).",
    ),
]
Qos = Annotated[
    int, typer.Option("-q", "--qos", metavar="QOS", min=0, max=2, help="Quality of service.")
]


def main() -> NoReturn:
    """Run the command; a FoldmqError becomes one line on stderr and its exit code."""
    argv_secrets.hide(sys.argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Names chosen by clients may not exist in the encoding of the terminal.
            stream.reconfigure(errors="backslashreplace")
    try:
        app(prog_name="foldmq")
    except FoldmqError as error:
        fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader of the output is gone: the flush at exit must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    sys.exit(0)


def fail(message: str, exit_code: int) -> NoReturn:
    """Print ``foldmq: message`` as one line on stderr and exit."""
    # No traceback: the message must be enough for the user.
    sys.stderr.write("foldmq: " + " ".join(message.split("\n")) + "\n")
    sys.exit(exit_code)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"foldmq {version}")
        raise typer.Exit


@app.callback()
def _foldmq(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    del show_version


@app.command("version")
def _version() -> None:
    """Show the version."""
    typer.echo(f"foldmq {version}")


@app.command("serve")
@with_settings_flags
def _serve(config: Path | None, flags: dict[str, object]) -> None:
    """Run the broker.

    Every setting can also be given as an environment variable (FOLDMQ_MAX_SESSIONS for
    --max-sessions) and in a TOML file (max_sessions). Flags override environment variables, which
    override the file. Sizes and times may have a unit: 16MiB, 30s. SIGHUP reloads log level, users,
    permissions, certificates and limits; SIGTERM drains the broker and stops it.
    """
    # Other commands do not load the packages of the broker.
    from cli.serve import service

    service.run(flags, config)


@app.command("pseudonym")
def _pseudonym(
    client: Annotated[str, typer.Argument(metavar="ID", help="Client ID.")],
    data_dir: Annotated[
        Path, typer.Option("--data-dir", metavar="DIR", help="Data directory of the broker.")
    ] = Path("foldmq-data"),
) -> None:
    """Show the pseudonym of a client ID.

    Works for the data directory of a broker with pseudonyms = true.
    """
    from cli.serve import auth_factory

    typer.echo(auth_factory.pseudonym_of(client, data_dir))


@app.command("salvage")
def _salvage(
    data_dir: Annotated[
        Path, typer.Option("--data-dir", metavar="DIR", help="Data directory with the damaged log.")
    ],
    to: Annotated[Path, typer.Option("--to", metavar="NEWDIR", help="Data directory to create.")],
) -> None:
    """Copy the intact part of a damaged log.

    Creates a new data directory; the damaged one is only read. The new one needs disk space for
    twice the log while this runs.
    """
    from cli.history import salvage

    salvage.run(data_dir, to)


log_commands.register(app)
operatorcommands.register(app)
webcommand.register(app)
sparkcommands.register(app)
acl_command.register(app)
passwd_command.register(app)


@app.command("pub")
def _pub(
    topic: Annotated[
        str, typer.Option("-t", "--topic", metavar="TOPIC", help="Topic of the message.")
    ],
    message: Annotated[
        str | None, typer.Option("-m", "--message", metavar="TEXT", help="Payload.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("-f", "--file", metavar="FILE", help="File with the payload.")
    ] = None,
    null: Annotated[bool, typer.Option("-n", "--null-message", help="Empty payload.")] = False,
    lines: Annotated[
        bool, typer.Option("-l", "--stdin-line", help="Publish each line of stdin as a message.")
    ] = False,
    qos: Qos = 0,
    retain: Annotated[bool, typer.Option("-r", "--retain", help="Retain the message.")] = False,
    host: Host = "127.0.0.1",
    port: Port = None,
    client_id: ClientId = None,
    keep: Keep = False,
    username: Username = None,
    password: Password = None,
    url: Url = None,
    cafile: CaFile = None,
    cert: Cert = None,
    key: Key = None,
    insecure: Insecure = False,
) -> None:
    """Publish messages.

    Exits with 0 when the broker has acknowledged all of them (QoS 1 and 2).
    """
    from cli.clients import connection as client
    from cli.clients import pub
    from cli.logsource import check_topic

    check_topic(topic)
    source = sys.stdin.buffer if lines else None
    payloads = pub.payloads(message, file, null=null, lines=source)
    files = client.TlsFiles(cafile, cert, key, insecure)
    target = client.find_target(host, port, username, password, url, files)
    with pub.Publisher(target, client_id, persistent=keep) as publisher:
        for payload in payloads:
            publisher.publish(topic, payload, qos, retain=retain)


@app.command("sub")
def _sub(
    topics: Annotated[
        list[str],
        typer.Option(
            "-t", "--topic", metavar="FILTER", help="Topic filter to subscribe to. May be repeated."
        ),
    ],
    qos: Qos = 0,
    count: Annotated[
        int | None,
        typer.Option("-C", "--count", metavar="N", min=1, help="Exit after this many messages."),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            "-W",
            "--timeout",
            metavar="SECONDS",
            min=0,
            help="Exit with code 27 after this many seconds.",
        ),
    ] = None,
    only_subscribe: Annotated[
        bool,
        typer.Option(
            "-E", "--only-subscribe", help="Exit when the broker has acknowledged the subscription."
        ),
    ] = False,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Print the topic before the payload.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per message.")
    ] = False,
    host: Host = "127.0.0.1",
    port: Port = None,
    client_id: ClientId = None,
    keep: Keep = False,
    username: Username = None,
    password: Password = None,
    url: Url = None,
    cafile: CaFile = None,
    cert: Cert = None,
    key: Key = None,
    insecure: Insecure = False,
) -> None:
    """Subscribe and print the messages.

    Waits for the broker if it cannot be reached, and reconnects if the connection is lost. With -i,
    -c and -E, creates a session in which the broker queues messages for later.
    """
    from cli.clients import connection as client
    from cli.clients import sub
    from cli.logsource import check_filter

    if only_subscribe and count is not None:
        raise client.BadArgumentError(
            "-E and -C cannot be combined: -E exits before the first message"
        )

    for topic in topics:
        check_filter(topic)
    files = client.TlsFiles(cafile, cert, key, insecure)
    style: sub.Style = "json" if as_json else "verbose" if verbose else "payload"
    subscriber = sub.Subscriber(
        client.find_target(host, port, username, password, url, files),
        [(topic, qos) for topic in topics],
        client_id,
        persistent=keep,
        out=sys.stdout.buffer,
        style=style,
    )
    subscriber.run(0 if only_subscribe else count, timeout)


if __name__ == "__main__":
    main()
