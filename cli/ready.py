"""What ``foldmq serve`` says about itself: progress while it starts, the banner when it is up."""

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

import structlog

from cli import version
from cli.settings import Settings
from cli.units import Address

log = structlog.get_logger("foldmq")

PATIENCE = 1.0  # seconds without a word
_LINE_EVERY = 0.2  # seconds between updates on a terminal
_LOG_EVERY = 5.0  # seconds between log lines elsewhere


class Progress:
    """Tells how far the log is replayed when that takes longer than a second.

    On a terminal one line is updated in place; elsewhere a log line is written now and then.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        """Write to ``stream``, by default stderr."""
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._next = time.monotonic() + PATIENCE
        self._shown = False

    def __call__(self, done: int, total: int) -> None:
        """Take note that ``done`` of ``total`` records are replayed."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (_LINE_EVERY if self._terminal else _LOG_EVERY)
        percent = 100 * done // total if total else 100
        if not self._terminal:
            log.info("replaying the log", percent=percent, records=done, of=total)
            return
        self._shown = True
        self._stream.write(f"\rreplaying the log: {percent:3} %, record {done:,} of {total:,} ")
        self._stream.flush()

    def close(self) -> None:
        """Remove the line."""
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


@dataclass(frozen=True, slots=True)
class Facts:
    """What the banner tells besides the settings."""

    listening: Sequence[Address]
    users: int
    data: str
    node: str
    nats: str
    promise: str
    durable: bool


def announce(settings: Settings, facts: Facts, stream: TextIO | None = None) -> None:
    """Say where the broker listens, for whom, and what it promises.

    Plain lines in the text format, one log line in the JSON format.
    """
    who = admitted(settings, facts.users)
    addresses = [str(place) for place in facts.listening]
    if settings.log_format == "json":
        log.info(
            "ready",
            version=version,
            pid=os.getpid(),
            listening=addresses,
            clients=who,
            data=facts.data,
            node=facts.node,
            nats=facts.nats,
            promise=facts.promise,
        )
    else:
        rows = [
            ("listening", ", ".join(addresses)),
            ("clients", who),
            ("data", f"{facts.data} (node {facts.node})"),
            ("log in", facts.nats),
            ("promise", facts.promise if facts.durable else f"WEAKER: {facts.promise}"),
        ]
        out = stream or sys.stderr
        out.write(f"foldmq {version}, process {os.getpid()}\n")
        out.writelines(f"  {name:<10} {text}\n" for name, text in rows)
        out.flush()
    if settings.anonymous and not all(place.loopback for place in facts.listening):
        log.warning("everybody who can reach this machine may connect (allow_anonymous = true)")


def admitted(settings: Settings, users: int) -> str:
    """Say who may connect."""
    if settings.password_file is None:
        return "anybody, without a password"
    named = f"the {users} users of {settings.password_file}"
    if users == 1:
        named = f"the one user of {settings.password_file}"
    return f"{named}, and anybody without a user name" if settings.anonymous else named
