"""The outbox of ``foldmq serve``: a process that sends messages to destinations, beside the broker.

It runs only if the settings have destinations. It gets them through its standard input, which only
the broker holds, and never outlives the broker.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Any

import orjson

from actors.session.node_context import NodeContext
from cli.common.endpoints import Endpoint
from cli.logs.outbox_subjects import live_subject, stored_subject
from cli.settings.broker_child import BrokerChild, environment_for
from cli.settings.connection_settings import local_listener
from cli.settings.settings import Settings
from cli.settings.sink_settings import outbox_request
from eventstore.datadir import DataDir
from eventstore.log.pending_record import PendingRecord
from eventstore.nats.direct_client import DirectClient


class OutboxProcess(BrokerChild):
    """Keeps the process of the outbox running.

    It is ended while the broker still records events: it records its cursors.
    """

    title = "the outbox"
    stop_seconds = 5.0

    def __init__(self) -> None:
        super().__init__()
        self._reloading = False
        self._node = ""
        self._settings: Settings
        self._local: dict[str, Any] | None = None
        self._logs: Sequence[str] = ()

    def announce(self, settings: Settings, node: NodeContext, client: DirectClient) -> None:
        """Announce what the outbox needs to know, from before any client is there."""
        if settings.destinations:
            _announce_durable(node, client)
        live = [each for table in settings.connections.values() for each in table.live]
        if live:
            from actors.exchange.qos0_exchange import LiveMessages

            send = partial(client.publish_now, live_subject(node.options.node))
            node.topic_observers.append(LiveMessages(node, live, send))

    def start(
        self,
        settings: Settings,
        datadir: DataDir,
        node: NodeContext,
        places: Sequence[Endpoint],
        logs: Sequence[str] = (),
    ) -> None:
        """Begin, if there are destinations; ``places`` are the addresses of the listeners.

        ``logs`` are the names of the logs of a broker with several.
        """
        if not (settings.sinks or settings.connections):
            return
        self._node = node.options.node
        self._settings = settings
        self._local = local_listener(settings, places)
        self._logs = logs
        keeping = self._keep_running(partial(self._send, datadir))
        self._keeping = asyncio.create_task(keeping, name="outbox")

    def reload(self, settings: Settings) -> None:
        """Let the process read the permissions again, if a destination has a user."""
        self._settings = settings
        process = self._process
        users = any(each.user is not None for each in settings.destinations.values())
        if users and process is not None and process.returncode is None:
            self._reloading = True
            with contextlib.suppress(ProcessLookupError):
                process.terminate()

    async def _send(self, datadir: DataDir) -> str:
        """Run the process; return why it failed, or nothing after a reload."""
        environment = environment_for(self._settings, datadir)
        settings, node = self._settings, self._node
        request = orjson.dumps(outbox_request(settings, node, self._local, self._logs)) + b"\n"
        arguments = ("outbox", "run", "--data-dir", str(datadir.path))
        why = await self._run(arguments, environment, request)
        is_reload, self._reloading = self._reloading, False
        return "" if is_reload else why


def _announce_durable(node: NodeContext, client: DirectClient) -> None:
    """Tell the outbox, after each commit, up to which record the log is on disk."""
    before, subject = node.journal.on_durable, stored_subject(node.options.node)

    def on_durable(record: PendingRecord) -> None:
        before(record)
        client.publish_now(subject, b"%d" % record.sequence)

    node.journal.on_durable = on_durable
