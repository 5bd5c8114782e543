"""The start output of ``foldmq serve``: progress of the replay, then the banner."""

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import structlog

from cli.common import interpreter
from cli.common.endpoints import Endpoint
from cli.common.package_version import version
from cli.common.units import Address
from cli.settings.settings import Settings
from cli.web.own_token import TOKEN_FILE

log = structlog.get_logger("foldmq")

FIRST_OUTPUT_SECONDS = 1.0  # seconds before the first output
_LINE_EVERY = 0.2  # seconds between updates on a terminal
_LOG_EVERY = 5.0  # seconds between log lines elsewhere


class Progress:
    """Shows the progress of a replay that takes longer than a second.

    On a terminal one line is updated in place; elsewhere log lines are written periodically.
    """

    def __init__(
        self, stream: TextIO | None = None, tell: Callable[[str], None] | None = None
    ) -> None:
        """Write to ``stream``, by default stderr; ``tell`` gets the same as text."""
        self._stream = stream or sys.stderr
        self._tell = tell
        self._terminal = self._stream.isatty()
        self._next = time.monotonic() + FIRST_OUTPUT_SECONDS
        self._shown = False

    def __call__(self, count: int, total: int) -> None:
        """Show how many of ``total`` records are replayed."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (_LINE_EVERY if self._terminal else _LOG_EVERY)
        percent = 100 * count // total if total else 100
        if self._tell is not None:
            self._tell(f"replaying the log: {percent} %")
        if not self._terminal:
            log.info("replaying the log", percent=percent, records=count, of=total)
            return
        self._shown = True
        self._stream.write(f"\rreplaying the log: {percent:3} %, record {count:,} of {total:,} ")
        self._stream.flush()

    def close(self) -> None:
        """Remove the line."""
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts for the banner besides the settings."""

    listening: Sequence[Endpoint]
    metrics: Address | None
    web: str | None
    """URL of the web page, or None."""
    web_token: str
    """Suffix of the URL with the token; not for files."""
    users: int
    data: str
    node: str
    nats: str
    promise: str
    durable: bool
    nats_clients: Address | None = None
    """The address at which NATS clients connect to the embedded NATS server, or None."""
    nats_users: int = 0
    not_proven: Sequence[str] = ()
    """Statements about the parts of the log about which nothing can be said."""
    bridge: str | None = None
    """The NATS server of the bridge; None: no bridge."""
    kept: str = ""
    """How long the log is kept, and its bound; empty: not known."""


def announce(settings: Settings, facts: Facts, stream: TextIO | None = None) -> None:
    """Print the listeners, the admitted clients and the durability guarantee.

    As plain lines in the text format, as one log line in the JSON format.
    """
    who = admitted(settings, facts.users)
    addresses = [str(place) for place in facts.listening]
    encryption = at_rest(settings, embedded=settings.nats_url is None)
    metrics = None if facts.metrics is None else f"http://{facts.metrics}/metrics"
    if settings.log_format == "json":
        log.info(
            "ready",
            version=version,
            pid=os.getpid(),
            listening=addresses,
            clients=who,
            permissions=None if settings.permissions is None else str(settings.permissions),
            metrics=metrics,
            web=facts.web,
            data=facts.data,
            node=facts.node,
            cluster=settings.cluster,
            nats=facts.nats,
            encryption=encryption or "off",
            kept=facts.kept,
            promise=facts.promise,
            not_proven=list(facts.not_proven),
            nats_clients=None if facts.nats_clients is None else str(facts.nats_clients),
            bridge=facts.bridge,
        )
    else:
        out = stream or sys.stderr
        of = f" of cluster {settings.cluster}" if settings.cluster is not None else ""
        rows = [
            ("listening", ", ".join(addresses)),
            ("clients", who),
            *([("rules", str(settings.permissions))] if settings.permissions else []),
            ("metrics", metrics or "off"),
            ("web page", _web_page(facts, terminal=out.isatty())),
            ("data", f"{facts.data} (node {facts.node}{of})"),
            ("log in", facts.nats),
            *([("encryption", encryption)] if encryption else []),
            *([("log kept", facts.kept)] if facts.kept else []),
            *_bridge_rows(settings, facts),
            ("guarantee", facts.promise if facts.durable else f"WEAKER: {facts.promise}"),
            *(("not proven", statement) for statement in facts.not_proven),
        ]
        out.write(f"foldmq {version}, process {os.getpid()}\n")
        out.writelines(f"  {name:<10} {text}\n" for name, text in rows)
        out.flush()
    if interpreter.own() is False:
        log.info(interpreter.NOT_OPTIMISED, python=sys.executable)
    if not interpreter.compiled():
        log.info(interpreter.NOT_COMPILED)
    if any(own.anonymous and own.reachable and not own.certified for own in settings.listeners()):
        log.warning("any client that can reach this machine may connect (allow_anonymous = true)")
    if settings.nats_anonymous and settings.nats_tls_client_ca is None:
        log.warning(
            "any NATS client that can reach this address may read and write all topics "
            "(nats_anonymous = true)",
            nats_listen=str(settings.nats_listen),
        )


def at_rest(settings: Settings, *, embedded: bool) -> str:
    """Return what is encrypted at rest; empty: nothing.

    ``embedded``: the log is in the embedded NATS server, of this process or of the main one.
    """
    file = settings.encryption_key_file
    if embedded:
        return f"AES-256, key in {file}" if file is not None else ""
    log_text = "the log as the NATS server at nats_url is configured, which it does not say"
    return f"the index, key in {file}; {log_text}" if file is not None else log_text


def _bridge_rows(settings: Settings, facts: Facts) -> list[tuple[str, str]]:
    """Return the addresses of NATS clients and of the bridge; empty without both."""
    rows = []
    if facts.nats_clients is not None:
        tls = " (TLS)" if settings.nats_tls_cert is not None else ""
        rows.append(("NATS", f"{facts.nats_clients}{tls}, for {_nats_clients(settings, facts)}"))
    if facts.bridge is not None:
        rows.append(("bridge", f"exchanges messages with NATS at {facts.bridge}"))
    elif facts.nats_clients is not None:
        rows.append(("bridge", "off"))
    return rows


def _nats_clients(settings: Settings, facts: Facts) -> str:
    """Return which clients may connect by NATS."""
    who = _named(facts.nats_users, settings.nats_users)
    if settings.nats_tls_client_ca is None:
        return who or "any client, without a password"
    return f"{who}, with a certificate" if who else "clients with a certificate"


def _web_page(facts: Facts, *, terminal: bool) -> str:
    """Return the URL of the web page, on a terminal with its token."""
    if facts.web is None:
        return "off"
    if terminal:
        return facts.web + facts.web_token
    return f"{facts.web} (asks for the token in {facts.data}/{TOKEN_FILE})"


def admitted(settings: Settings, users: int) -> str:
    """Return which clients may connect."""
    listeners = settings.listeners()
    kinds = [
        _named(users, settings.password_file),
        f"tokens signed with {settings.jwt_keys}" if settings.jwt_keys else "",
        f"clients accepted by {settings.auth_subject}" if settings.auth_subject else "",
        "client certificates" if any(own.tls_identity != "none" for own in listeners) else "",
        "clients with a certificate" if any(map(_by_certificate, listeners)) else "",
    ]
    line = ", ".join(filter(None, kinds))
    free = [str(own.listen[0]) for own in listeners if own.anonymous and not own.certified]
    if not line and len(free) == len(listeners):
        return "any client, without a password"
    if not free:
        return line
    where = "" if len(free) == len(listeners) else f" at {', '.join(free)}"
    return f"{line}{', and ' if line else ''}clients without a user name{where}"


def _by_certificate(own: Settings) -> bool:
    return own.anonymous and own.certified


def _named(users: int, file: Path | None) -> str:
    """Return the number of users in a file as text; empty without a file."""
    if file is None:
        return ""
    return f"the one user of {file}" if users == 1 else f"the {users} users of {file}"
