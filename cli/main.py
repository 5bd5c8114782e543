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
    help="An MQTT broker that keeps every acknowledged message: on disk before the answer.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Host = Annotated[str, typer.Option("-h", "--host", help="Broker to connect to.")]
Port = Annotated[
    int | None,
    typer.Option("-p", "--port", min=1, max=65535, help="Its port. [default: 1883, with TLS 8883]"),
]
Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="FOLDMQ_URL",
        show_envvar=False,
        help="All in one: mqtt://user:password@host:port, or mqtts, ws, wss.",
    ),
]
CaFile = Annotated[
    Path | None,
    typer.Option("--cafile", help="Certificates that the broker's is to be trusted by (TLS)."),
]
Cert = Annotated[Path | None, typer.Option("--cert", help="Certificate to show (TLS).")]
Key = Annotated[Path | None, typer.Option("--key", help="Its private key.")]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Do not look whether the certificate is for the host.")
]
Username = Annotated[str | None, typer.Option("-u", "--username", help="User name.")]
Password = Annotated[
    str | None,
    typer.Option("-P", "--pw", "--password", envvar="FOLDMQ_PASSWORD", help="Password."),
]
ClientId = Annotated[str | None, typer.Option("-i", "--id", help="Client id.")]
Keep = Annotated[
    bool, typer.Option("-c", "--keep-session", help="Keep the session (clean session = 0).")
]
Qos = Annotated[int, typer.Option("-q", "--qos", min=0, max=2, help="Quality of service.")]


def main() -> NoReturn:
    """Run the command; an error foldmq can name is one line on stderr and its exit code."""
    argv_secrets.hide(sys.argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # What clients chose may not exist in the encoding of the terminal.
            stream.reconfigure(errors="backslashreplace")
    try:
        app(prog_name="foldmq")
    except FoldmqError as error:
        fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader of the output has gone; nothing is left to be flushed at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    sys.exit(0)


def fail(message: str, exit_code: int) -> NoReturn:
    """Print ``foldmq: message`` as one line on stderr and exit."""
    # Only a traceback could tell more, and no user should need one.
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

    Every setting can also be given in the environment (FOLDMQ_MAX_SESSIONS for --max-sessions)
    and in a TOML file (max_sessions); a flag goes before the environment, that before the file.
    Sizes and times may have a unit: 16MiB, 30s. SIGHUP rereads log level, users and limits,
    SIGTERM drains and ends.
    """
    # The broker's packages are not loaded for the other commands.
    from cli.serve import service

    service.run(flags, config)


@app.command("pseudonym")
def _pseudonym(
    client: Annotated[str, typer.Argument(help="Client id, as the client has it.")],
    data_dir: Annotated[
        Path, typer.Option("--data-dir", metavar="DIR", help="Data directory of the broker.")
    ] = Path("foldmq-data"),
) -> None:
    """Show what stands for a client id where the broker has pseudonyms = true."""
    from cli.serve import auth_factory

    typer.echo(auth_factory.pseudonym_of(client, data_dir))


@app.command("salvage")
def _salvage(
    data_dir: Annotated[
        Path, typer.Option("--data-dir", metavar="DIR", help="Directory with the damaged log.")
    ],
    to: Annotated[Path, typer.Option("--to", metavar="NEWDIR", help="Directory that is made.")],
) -> None:
    """Save the intact beginning of a damaged log into a new data directory.

    DIR is only read. NEWDIR needs room for twice the log while this runs.
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
    topic: Annotated[str, typer.Option("-t", "--topic", help="Topic to publish to.")],
    message: Annotated[str | None, typer.Option("-m", "--message", help="The payload.")] = None,
    file: Annotated[
        Path | None, typer.Option("-f", "--file", help="File that is the payload.")
    ] = None,
    null: Annotated[bool, typer.Option("-n", "--null-message", help="Empty payload.")] = False,
    lines: Annotated[
        bool, typer.Option("-l", "--stdin-line", help="Each line of stdin is a payload.")
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
    """Publish; ends well when the broker has acknowledged everything (QoS 1 and 2)."""
    from cli.clients import connection as client
    from cli.clients import pub

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
        list[str], typer.Option("-t", "--topic", help="Topic filter; may be given several times.")
    ],
    qos: Qos = 0,
    count: Annotated[
        int | None, typer.Option("-C", "--count", min=1, help="End after this many messages.")
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option("-W", "--timeout", min=0, help="End after this many seconds (exit code 27)."),
    ] = None,
    only_subscribe: Annotated[
        bool, typer.Option("-E", "--only-subscribe", help="End when the broker has subscribed it.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Print the topic before the payload.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object per message.")
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
    """Print messages as they come; waits for the broker when it is away.

    With -i, -c and -E it leaves a session for which the broker keeps messages.
    """
    from cli.clients import connection as client
    from cli.clients import sub

    if only_subscribe and count is not None:
        raise client.BadArgumentError("-E prints no message, -C waits for some: give one of them")

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
