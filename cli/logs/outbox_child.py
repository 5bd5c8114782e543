"""The process of the outbox: it runs the destinations of one log until the broker ends it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import orjson
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg

from cli.common import logging_setup
from cli.logs.broker_client import LiveBroker, NoLiveBroker, Refused
from cli.logs.logs import open_logs
from cli.logs.outbox_subjects import live_subject, stored_subject
from cli.logs.source_flags import SourceFlags
from cli.settings.broker_child import belong_to_the_broker, watch_stdin
from cli.settings.settings import load_settings
from eventstore.errors import LogUnavailable, UsageError
from eventstore.log.key_file import KeyReader
from eventstore.nats.discovery import LOG_STREAM_PREFIX
from eventstore.reading.log_source import LogSource
from eventstore.task_cancellation import end_tasks
from outbox.control import BrokerUnavailable, RecordedCursor
from outbox.mqtt.bridge_sink import MqttSink
from outbox.runner import DestinationRunner
from outbox.selection import Selection
from outbox.sink import Destination, OutboxMessage, RefusedMessages, Sink, TryAgain
from outbox.sinks.kinds import make_reader, make_sink
from protocol.errors import FoldmqError

_log = structlog.get_logger("foldmq")

_NICE = 5
_LARGEST_REQUEST = 4 * 1024 * 1024
_QUIET = 2.0
"""Seconds without an announcement after which the broker is asked for the end of its log."""
_FAILED_AGAIN = (1.0, 60.0)
"""Seconds after which a destination that failed is started again: at first, or when it ran for
longer than the second; and at most."""
_GLANCE = 0.01
"""Seconds in which the end of standard input is seen, if it has come already."""
_GONE = 15.0
"""Seconds without a connection to NATS after which the process ends: the broker restarts it."""


def run_outbox(flags: SourceFlags) -> None:
    """Run the destinations that the broker writes to standard input, until that ends."""
    request = _read_request()
    settings = load_settings(flags.settings, os.environ, flags.config)
    logging_setup.configure(settings.log_level, settings.log_format)
    belong_to_the_broker(_NICE)
    asyncio.run(_run(flags, request))


def _read_request() -> dict[str, Any]:
    data = b""
    while not data.endswith(b"\n"):
        piece = b"" if os.isatty(0) or len(data) > _LARGEST_REQUEST else os.read(0, 65_536)
        if not piece:
            raise UsageError("'foldmq serve' runs this command when its settings have sinks")
        data += piece
    request: dict[str, Any] = orjson.loads(data)
    return request


async def _run(flags: SourceFlags, request: Mapping[str, Any]) -> None:
    end = asyncio.Event()
    await watch_stdin(end)
    await asyncio.sleep(_GLANCE)
    if end.is_set():  # the broker is gone, and its log may not be opened without it
        return
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end.set)
    node = request["node"]
    async with open_logs(replace(flags, node=node)) as logs:
        (source,) = logs.values()
        if request["keys"] is not None:
            keys = KeyReader(Path(request["keys"]), node)
            source = replace(source, content_key=keys.key)
        broker = LiveBroker(node, source.where, source.client)
        control = _NatsControl(broker)
        durable = _Announcements(control)
        await durable.listen(source.client, node)
        if any(each.get("live") for each in request["sinks"]):
            await durable.listen_live(source.client, node)
        permitted = _permissions(request["permissions"])
        tasks = [
            asyncio.create_task(_keep(each, permitted, source, control, durable))
            for each in _with_local(request)
        ]
        tasks += [
            asyncio.create_task(_push_metrics(each, broker))
            for each in request["sinks"]
            if each.get("metrics")
        ]
        watching = asyncio.create_task(_until_gone(source.client))
        ended = asyncio.create_task(end.wait())
        try:
            await asyncio.wait([watching, ended], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end_tasks([*tasks, watching, ended])
    if not end.is_set():
        raise LogUnavailable("the connection to NATS was lost")


def _with_local(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the destinations, each with the listener of the broker for messages in."""
    about = {"local": request["local"], "logs": request["logs"]}
    return [{**each, **about} for each in request["sinks"]]


async def _until_gone(client: Client) -> None:
    """Return when the connection to NATS has been lost for long."""
    now = asyncio.get_running_loop().time
    seen = now()
    while now() - seen < _GONE and not client.is_closed:
        await asyncio.sleep(1.0)
        if client.is_connected:
            seen = now()


async def _keep(
    settings: Mapping[str, Any],
    permitted: Callable[[str | None], Callable[[str], bool] | None],
    source: LogSource,
    control: _NatsControl,
    durable: _Announcements,
) -> None:
    """Run a destination; start it again if it fails, which concerns no other destination."""
    first, longest = _FAILED_AGAIN
    pause, now = first, asyncio.get_running_loop().time
    while True:
        begun = now()
        try:
            if settings["kind"] == "mqtt" and not settings["filters"]:
                await _run_inward(settings, source.stream.removeprefix(LOG_STREAM_PREFIX))
            else:
                await _runner(settings, permitted, source, control, durable).run()
        except FoldmqError as error:  # such as a damaged log
            _log.error("a destination failed", to=settings["name"], reason=str(error))
        except Exception as error:  # noqa: BLE001 - a fault of one destination or sink
            _log.error("a destination failed", to=settings["name"], exc_info=error)
        if now() - begun > longest:
            pause = first
        await asyncio.sleep(pause)
        pause = min(2 * pause, longest)


def _runner(
    settings: Mapping[str, Any],
    permitted: Callable[[str | None], Callable[[str], bool] | None],
    source: LogSource,
    control: _NatsControl,
    durable: _Announcements,
) -> DestinationRunner:
    def is_erased(key: int) -> bool:
        return source.content_key is not None and source.content_key(key) is None

    own: str | None = None
    sink: Sink
    if settings["kind"] == "mqtt":
        from outbox.mqtt.bridge_sink import batch_limits

        connection = _mqtt_sink(settings, is_erased)
        own = connection.options.local_client_id
        if settings["live"]:
            allowed = Selection((), permitted(settings["user"]))
            durable.live[settings["name"]] = partial(
                connection.pass_live, may_have=allowed.may_have
            )
        sink, limits = connection, batch_limits(connection.options)
    else:
        sink, limits = make_sink(settings)
    selection = Selection(settings["filters"], permitted(settings["user"]), own)
    node = source.stream.removeprefix(LOG_STREAM_PREFIX)
    due = partial(make_reader, settings, source, selection, durable, node)
    return DestinationRunner(
        settings["name"], node, sink, due, control, limits, is_erased=is_erased
    )


def _mqtt_sink(
    settings: Mapping[str, Any], is_erased: Callable[[int], bool] = lambda _: False
) -> MqttSink:
    # Only a broker with connections loads the MQTT client.
    from outbox.mqtt.bridge_sink import MqttSink
    from outbox.mqtt.options import read_connection
    from outbox.mqtt.peer import LocalAddress

    local = settings["local"]
    connection = read_connection(settings["name"], settings["table"])
    return MqttSink(
        connection,
        LocalAddress(**local) if local is not None else None,
        logs=settings["logs"],
        is_erased=is_erased,
    )


async def _run_inward(settings: Mapping[str, Any], node: str) -> None:
    """Run a connection that has messages in only, which is no destination of the log."""
    from outbox.mqtt.bridge_sink import takes_in

    sink = _mqtt_sink(settings)
    if not takes_in(sink.options, node, settings["logs"]):
        await asyncio.Event().wait()  # another log of this broker has it
    try:
        await sink.take(node)
    finally:
        await sink.close()


async def _push_metrics(settings: Mapping[str, Any], broker: LiveBroker) -> None:
    """Send the metrics of the broker again and again; what cannot be sent now is left out."""
    from actors.inspection.status_metrics import METRICS
    from outbox.sinks.kinds import make_otlp_sink
    from outbox.sinks.metric_json import metric_objects

    sink, to, reason = make_otlp_sink(settings, "metrics"), settings["name"], ""
    try:
        while True:
            try:
                await sink.open(Destination(to, broker.node, 0, 0, 0, 0, _no_receiver))
                status = await broker.ask("status", topics=False)
                times = status["started_ms"], status["time_ms"]
                await sink.push(metric_objects(METRICS, status, *times))
                reason = ""
            except (TryAgain, RefusedMessages, NoLiveBroker, Refused) as error:
                if str(error) != reason:
                    reason = str(error)
                    _log.warning("metrics were not sent", to=to, reason=reason)
            await asyncio.sleep(settings["metrics"])
    finally:
        await sink.close()


async def _no_receiver(_received: int) -> None:
    """Record nothing: metrics have no cursor."""


def _permissions(path: str | None) -> Callable[[str | None], Callable[[str], bool] | None]:
    """Return a function that returns which topics a user may read; None: all topics."""
    if path is None:
        return lambda _user: None
    from actors.access import rules_file

    rules = rules_file.load(Path(path))

    def permitted(user: str | None) -> Callable[[str], bool] | None:
        return None if user is None else rules.access(user, (), "").may_read

    return permitted


class _NatsControl:
    """Requests to the broker over NATS."""

    def __init__(self, broker: LiveBroker) -> None:
        self._broker = broker

    async def cursors(self) -> dict[str, RecordedCursor]:
        """Return all destinations of the log by name."""
        rows = (await self._ask("destinations"))["rows"]
        return {row["name"]: RecordedCursor.of(row) for row in rows}

    async def record(self, request: Mapping[str, Any]) -> RecordedCursor:
        """Record progress; return what the log has then."""
        return RecordedCursor.of(await self._ask("change", **request))

    async def durable(self) -> int:
        """Return the last record that is on disk."""
        durable: int = (await self._ask("destinations"))["durable"]
        return durable

    async def _ask(self, endpoint: str, **request: Any) -> dict[str, Any]:
        try:
            return await self._broker.ask(endpoint, **request)
        except (NoLiveBroker, Refused) as error:
            raise BrokerUnavailable(str(error)) from None


class _Announcements:
    """The end of the log on disk, as the broker announces it."""

    def __init__(self, control: _NatsControl) -> None:
        self._control = control
        self._last = 0
        self._grown = asyncio.Event()
        self.live: dict[str, Callable[[Sequence[OutboxMessage]], None]] = {}
        """What takes messages at QoS 0, by the name of its destination."""

    async def listen(self, client: Client, node: str) -> None:
        """Take the announcements of a broker."""

        async def take(message: Msg) -> None:
            self._take(int(message.data))

        await client.subscribe(stored_subject(node), cb=take)

    async def listen_live(self, client: Client, node: str) -> None:
        """Pass the messages at QoS 0 on as they come."""
        from actors.exchange.qos0_exchange import decode_frames

        async def take(message: Msg) -> None:
            for messages in decode_frames(message.data):
                columns = zip_longest(
                    messages.topics, messages.payloads, messages.blocks, fillvalue=b""
                )
                batch = [
                    OutboxMessage(
                        *(0, 0, 0, 0, topic.decode(), payload, 0, messages.retain, messages.log),
                        block,
                    )
                    for topic, payload, block in columns
                ]
                for pass_on in self.live.values():
                    pass_on(batch)

        subject = live_subject(node)
        await client.subscribe(subject, cb=take, pending_bytes_limit=_LARGEST_REQUEST)

    def _take(self, sequence: int) -> None:
        if sequence > self._last:
            self._last = sequence
            grown, self._grown = self._grown, asyncio.Event()
            grown.set()

    async def reach(self, sequence: int, seconds: float | None = None) -> int:
        """Wait until a record is on disk; return the sequence of the last such record.

        After some seconds, if given, that is an earlier one.
        """
        now = asyncio.get_running_loop().time
        begun = now()
        while self._last < sequence and (seconds is None or now() - begun < seconds):
            grown = self._grown
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_QUIET):
                    await grown.wait()
                continue
            with contextlib.suppress(BrokerUnavailable):
                self._take(await self._control.durable())
        return self._last
