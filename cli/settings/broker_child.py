"""Child processes of the broker: their environment, and their end, never later than its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, Self

import structlog

from cli.common.units import Address
from cli.settings.log_settings import NATS_SETTINGS
from cli.settings.setting_sources import PREFIX
from eventstore.parent_process import end_with_parent
from eventstore.server.process import end_process

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from cli.settings.settings import Settings
    from eventstore.datadir import DataDir

_log = structlog.get_logger("foldmq")


def belong_to_the_broker(nice: int) -> None:
    """Lower the priority below the broker's, and end with the broker in any case."""
    with contextlib.suppress(OSError):
        os.nice(nice)
    end_with_parent(signal.SIGTERM)


async def watch_stdin(end: asyncio.Event) -> None:
    """Set ``end`` when standard input ends: only the broker holds its other end."""

    class Watch(asyncio.Protocol):
        def connection_lost(self, _exc: Exception | None) -> None:
            end.set()

    await asyncio.get_running_loop().connect_read_pipe(Watch, sys.stdin)


class BrokerChild:
    """A process beside the broker, started again and again by ``_keeping``.

    An async context that ends it. The process ends with its standard input, too, whose other end
    only the broker holds.
    """

    title: ClassVar[str] = "process"
    stop_seconds: ClassVar[float] = 3.0
    pauses: ClassVar[tuple[float, float]] = (0.5, 60.0)
    """Seconds before it is started again after a failure, at first and at most."""
    stable_seconds: ClassVar[float] = 60.0
    """Seconds after which it counts as started well."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._keeping: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """End the process, and do not start it again."""
        if self._keeping is not None:
            self._keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeping
        await end_process(self._process, self.stop_seconds)

    async def _keep_running(self, run: Callable[[], Awaitable[str]]) -> None:
        """Run the process again whenever it ends; ``run`` returns why it failed, or nothing."""
        now = asyncio.get_running_loop().time
        least, most = self.pauses
        pause = least
        while True:
            begun = now()
            why = await run()
            if not why or now() - begun > self.stable_seconds:
                pause = least
            if why:
                _log.warning(f"{self.title} ended, restarting it", reason=why, after_s=pause)
                await asyncio.sleep(pause)
                pause = min(2 * pause, most)

    async def _run(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        data: bytes = b"",
        descriptors: Sequence[int] = (),
    ) -> str:
        """Run a command of foldmq; return how it ended: ``exit 0``, ``signal 9`` or a reason.

        ``data`` is written to its standard input; it inherits the ``descriptors``.
        """
        try:
            process = self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                # Files in the working directory must not be imported as modules.
                *("-P", "-m", "foldmq", *arguments),
                env=environment,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                # Ctrl-C reaches the whole process group, but the broker ends this process.
                start_new_session=True,
                pass_fds=descriptors,
            )
            if data and process.stdin is not None:
                # It may end at once; uvloop raises RuntimeError for a closed pipe.
                with contextlib.suppress(ConnectionError, RuntimeError):
                    process.stdin.write(data)
                    await process.stdin.drain()
            code = await process.wait()
        except OSError as error:
            return error.strerror or str(error)
        return f"exit {code}" if code >= 0 else f"signal {-code}"


_OF_EACH: Final = ("log_level", "log_format", "encryption_key_file")
_OF_LOG: Final = (
    *NATS_SETTINGS,
    "cluster",
    "partitions",
    "cluster_listen",
    "cluster_advertise",
    "cluster_key_file",
    "cluster_tls_cert",
    "cluster_tls_key",
    "cluster_tls_ca",
)
_OF_PAGE: Final = ("web", "web_idle", "web_api", "web_cors")
_OF_TOKENS: Final = (
    "web_api_jwt",
    "web_api_jwt_roles",
    "jwt_issuer",
    "jwt_audience",
    "jwt_user_claim",
    "jwt_groups_claim",
    "jwt_keys",
    "permissions",
)


def environment_for(settings: Settings, datadir: DataDir) -> dict[str, str]:
    """Return the environment of the process: settings of the log, and of the web page.

    Secrets are not passed as arguments, which all users of the machine can see.
    """
    names = [*_OF_EACH]
    names += _OF_LOG if settings.nats_url is not None else ()
    if settings.web is not None:
        names += (*_OF_PAGE, *(_OF_TOKENS if settings.web_api_jwt else ()))
    environment = {key: value for key, value in os.environ.items() if not key.startswith(PREFIX)}
    for name in names:
        value = getattr(settings, name)
        if value != type(settings).model_fields[name].default:
            environment[PREFIX + name.upper()] = _written(value)
    return environment | {f"{PREFIX}DATA_DIR": str(datadir.path)}


def _written(value: object) -> str:
    """Return a value as in a variable of the environment."""
    if isinstance(value, Path):
        return str(value.absolute())
    if isinstance(value, tuple) and not isinstance(value, Address):
        return ",".join(value)
    return str(value)
