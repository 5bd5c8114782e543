"""The notification protocol of systemd, for ``foldmq serve``.

A service with ``Type=notify`` finds a datagram socket in ``NOTIFY_SOCKET`` and writes lines of
``NAME=value`` to it. Without such a socket nothing is done.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from typing import TYPE_CHECKING

import structlog

from actors.node.reload_outcome import ReloadOutcome
from cli.logs.next_commands import completed
from eventstore.display import escaped
from protocol.errors import FoldmqError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, MutableMapping

_log = structlog.get_logger("foldmq")

_SOCKET, _WATCHDOG, _WATCHED = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"
_PINGS = 3
"""Number of watchdog messages within systemd's timeout."""
_STATUS_EVERY = 5.0
"""Seconds between checks of the status, unless the watchdog needs shorter ones."""
_LONGEST_START = 60
"""Seconds that a start may take after each report of progress."""
_LONGEST_STATUS = 500


class Notifier:
    """Reports the state of the broker to the service manager, if there is one.

    Removes its variables from the environment: child processes must not report in its name. All
    reports are sent within :meth:`telling`.
    """

    def __init__(self, environment: MutableMapping[str, str] | None = None) -> None:
        """Read ``environment``; by default, that of the process."""
        variables = os.environ if environment is None else environment
        self._address = variables.pop(_SOCKET, "")
        watched = variables.pop(_WATCHED, "")
        limit = variables.pop(_WATCHDOG, "")
        self._socket: socket.socket | None = None
        if self._address and hasattr(socket, "AF_UNIX"):
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)
        if self._address.startswith("@"):
            # An abstract address: a name without a file.
            self._address = "\0" + self._address[1:]
        mine = not watched or watched == str(os.getpid())
        self.watchdog = int(limit) / 1e6 if limit.isdecimal() and mine else 0.0
        """Seconds without a watchdog message before the service manager acts; 0: never."""
        self._status = ""
        self._describe: Callable[[], str] | None = None
        """Returns the status; None until the broker serves."""
        self._timer: asyncio.TimerHandle | None = None

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """Send watchdog messages from the event loop.

        A blocked event loop sends none, which triggers the watchdog. An error that ends the context
        is reported as the reason.
        """
        if self._socket is None:
            yield
            return
        self.starting("starting")
        self._notify_periodically()
        try:
            yield
        except FoldmqError as error:
            self.stopping(f"failed: {error}")
            raise
        finally:
            if self._timer is not None:
                self._timer.cancel()
            self._socket.close()
            self._socket = None

    def starting(self, what: str) -> None:
        """Report the progress of the start and extend its timeout by a minute."""
        self._notify(f"EXTEND_TIMEOUT_USEC={_LONGEST_START * 1_000_000}", _status(what))

    def ready(self, describe: Callable[[], str]) -> None:
        """Report that clients are served, and from now on the status from ``describe``."""
        self._describe = describe
        self._notify("READY=1", *self._changed_status())

    async def reload(
        self, apply: Callable[[], Awaitable[tuple[str, ...]]], failed: str
    ) -> ReloadOutcome:
        """Reload the settings by ``apply`` and report it; return the outcome.

        ``apply`` returns the changed settings that need a restart; if it raises an error, a line
        that begins with ``failed`` is logged.
        """
        microseconds = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._notify("RELOADING=1", f"MONOTONIC_USEC={microseconds}")
        error, later = "", tuple[str, ...]()
        try:
            later = await apply()
        except (FoldmqError, OSError, ValueError) as refused:
            error = str(refused)
            _log.error(failed, reason=error)
        except Exception:  # noqa: BLE001 - the next one must be handled after any error
            error = "internal error, please report it"
            _log.exception(failed, reason=error)
        finally:
            self._notify("READY=1")
        check = completed("foldmq config check") if error else ""
        return ReloadOutcome(time.time_ns() // 1_000_000, error, later, check)

    def stopping(self, what: str) -> None:
        """Report that the broker stops, and why."""
        self._describe = None
        self._notify("STOPPING=1", _status(what))

    def _notify_periodically(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(
            self._interval, self._notify_periodically
        )
        lines = self._changed_status()
        if self.watchdog:
            lines.append("WATCHDOG=1")
        self._notify(*lines)

    @property
    def _interval(self) -> float:
        return min(self.watchdog / _PINGS, _STATUS_EVERY) if self.watchdog else _STATUS_EVERY

    def _changed_status(self) -> list[str]:
        """Return the status line if it has changed."""
        status = _status(self._describe()) if self._describe is not None else ""
        if not status or status == self._status:
            return []
        self._status = status
        return [status]

    def _notify(self, *lines: str) -> None:
        if self._socket is None or not lines:
            return
        try:
            self._socket.sendto("\n".join(lines).encode(), self._address)
        except OSError:
            # A service manager that does not listen must not disturb the service.
            return


def _status(text: str) -> str:
    return f"STATUS={escaped(text, _LONGEST_STATUS)}"
