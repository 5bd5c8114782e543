"""Child processes of the broker: their environment, and their end, never later than its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING, ClassVar, Self

from cli.settings.log_settings import NATS_SETTINGS
from cli.settings.setting_sources import PREFIX
from eventstore.parent_process import end_with_parent
from eventstore.server.process import end_process

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cli.settings.settings import Settings
    from eventstore.datadir import DataDir


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

    stop_seconds: ClassVar[float] = 3.0

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

    async def _run(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        given: bytes = b"",
        descriptors: Sequence[int] = (),
    ) -> str:
        """Run a command of foldmq; return how it ended: ``exit 0``, ``signal 9`` or a reason.

        ``given`` is written to its standard input; it inherits the ``descriptors``.
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
            if given and process.stdin is not None:
                # It may end at once; uvloop raises RuntimeError for a closed pipe.
                with contextlib.suppress(ConnectionError, RuntimeError):
                    process.stdin.write(given)
                    await process.stdin.drain()
            code = await process.wait()
        except OSError as error:
            return error.strerror or str(error)
        return f"exit {code}" if code >= 0 else f"signal {-code}"


_FOR_LOGS = (
    "partitions",
    "cluster_listen",
    "cluster_advertise",
    "cluster_key_file",
    "cluster_tls_cert",
    "cluster_tls_key",
    "cluster_tls_ca",
)
"""Settings that belong together in a cluster with several logs."""


def environment_for(settings: Settings, datadir: DataDir) -> dict[str, str]:
    """Return the environment of the process: log settings and access to an external NATS server.

    Secrets are not passed as arguments, which all users of the machine can see.
    """
    given = {key: value for key, value in os.environ.items() if not key.startswith(PREFIX)}
    chosen: dict[str, str] = {"log_level": settings.log_level, "log_format": settings.log_format}
    if settings.nats_url is not None:
        for name in (*NATS_SETTINGS, "cluster", *(_FOR_LOGS if settings.partitions > 1 else ())):
            value = getattr(settings, name)
            if value is not None:
                chosen[name] = str(value)
    if settings.encryption_key_file is not None:
        chosen["encryption_key_file"] = str(settings.encryption_key_file.absolute())
    if settings.web is not None:
        chosen["web"] = str(settings.web)  # host names of the page
        chosen["web_idle"] = str(settings.web_idle)
        if not settings.web_api:
            chosen["web_api"] = "false"
        if settings.web_api_jwt:
            chosen |= {"web_api_jwt": "true", **_jwt_settings(settings)}
        if settings.web_cors:
            chosen["web_cors"] = ",".join(settings.web_cors)
    chosen["data_dir"] = str(datadir.path)
    return given | {PREFIX + name.upper(): value for name, value in chosen.items()}


def _jwt_settings(settings: Settings) -> dict[str, str]:
    """Return the settings about users with JSON Web Tokens."""
    chosen = {
        "jwt_issuer": settings.jwt_issuer,
        "jwt_audience": ",".join(settings.jwt_audience),
        "jwt_user_claim": settings.jwt_user_claim,
        "jwt_groups_claim": settings.jwt_groups_claim,
        "web_api_jwt_roles": ",".join(settings.web_api_jwt_roles),
    }
    for name in ("jwt_keys", "permissions"):
        file = getattr(settings, name)
        chosen[name] = str(file.absolute()) if file is not None else None
    return {name: value for name, value in chosen.items() if value}
