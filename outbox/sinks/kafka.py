"""The sink ``kafka``: messages to a topic of Apache Kafka, with the topic of MQTT as the key."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from eventstore.display import escaped
from eventstore.format.positions import Position, format_position
from outbox.sink import Destination, OutboxMessage, RefusedMessages, TryAgain
from outbox.sinks.secret_files import usable_files
from outbox.sinks.webhook_signature import read_token
from protocol.mqtt.message_properties import properties_object

_REFUSED: Final = frozenset(
    {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD, KafkaError.INVALID_MSG}
)
_WRONG_SETTINGS: Final = frozenset(
    {
        *("_AUTHENTICATION", "_SSL", "_UNKNOWN_TOPIC", "UNKNOWN_TOPIC_OR_PART"),
        *("TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED"),
        "SASL_AUTHENTICATION_FAILED",
    }
)
_TIMED_OUT: Final = "_MSG_TIMED_OUT"
"""Names of errors of librdkafka."""
_SLICE: Final = 0.2
"""Seconds for which a thread waits for answers, before the sink may be ended."""
_REASON: Final = 200


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """The cluster and the topic."""

    servers: Sequence[str]
    topic: str
    timeout: float = 30.0
    """Seconds in which messages must be acknowledged."""
    password_file: Path | None = None
    ca_file: Path | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """Other properties of librdkafka, by its names."""


class KafkaSink:
    """Produces batches, and waits for their acknowledgements."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._log = ""
        self._producer: Producer | None = None
        self._failure: KafkaError | None = None
        """What librdkafka said last of the cluster."""
        self._stored: set[Position] = set()
        """Acknowledged messages of a batch of which others were refused."""

    async def open(self, about: Destination) -> None:
        """Prepare."""
        self._log = about.log
        self._stored.clear()
        await self.close()

    async def send(self, batch: Sequence[OutboxMessage]) -> None:
        """Return when the cluster has acknowledged every message."""
        if self._producer is None:
            self._producer = self._connect()
        errors: dict[Position, KafkaError] = {}
        waiting = {message.at for message in batch} - self._stored
        for message in batch:
            if message.at in waiting:
                self._produce(self._producer, message, waiting, errors)
        ends = asyncio.get_running_loop().time() + self._options.timeout + 2 * _SLICE
        while waiting and asyncio.get_running_loop().time() < ends:
            await asyncio.to_thread(self._producer.flush, _SLICE)
        await self._judge(batch, waiting, errors)

    def _produce(
        self,
        producer: Producer,
        message: OutboxMessage,
        waiting: set[Position],
        errors: dict[Position, KafkaError],
    ) -> None:
        def delivered(error: KafkaError | None, _message: object) -> None:
            waiting.discard(message.at)
            if error is not None:
                errors[message.at] = error

        user = properties_object(message.block).get("user_properties", ()) if message.block else ()
        position = f"{self._log}/{format_position(message.position)}"
        try:
            producer.produce(
                self._options.topic,
                key=message.topic.encode(),
                value=message.payload,
                headers=[*map(tuple, user), ("foldmq-position", position)],
                timestamp=message.time_ms,
                on_delivery=delivered,
            )
        except KafkaException as error:
            delivered(error.args[0], None)
        except BufferError:  # with a property that makes its queue shorter than a batch
            delivered(KafkaError(KafkaError._QUEUE_FULL), None)  # noqa: SLF001 - its public name

    async def _judge(
        self,
        batch: Sequence[OutboxMessage],
        waiting: set[Position],
        errors: dict[Position, KafkaError],
    ) -> None:
        """Return if all are acknowledged; raises TryAgain or RefusedMessages."""
        others = [error for error in errors.values() if error.code() not in _REFUSED]
        if waiting or others:
            # A new producer begins anew: none of these messages may follow later.
            await self.close()
            self._stored.clear()
            raise _try_again(self._failure, others)
        for message in batch:
            error = errors.get(message.at)
            if error is not None:
                same = [at for at, each in errors.items() if each.code() == error.code()]
                self._stored |= {each.at for each in batch} - errors.keys()
                raise RefusedMessages(_text(error), int(error.code()), same)
        self._stored.clear()

    def _connect(self) -> Producer:
        with usable_files("password_file"):
            options = producer_options(self._options)
        try:
            return Producer(options | {"error_cb": partial(setattr, self, "_failure")})
        except KafkaException as error:
            raise TryAgain(_text(error.args[0]), misconfigured=True) from None

    async def close(self) -> None:
        """Give up what is not acknowledged; librdkafka ends when nothing refers to it."""
        producer, self._producer, self._failure = self._producer, None, None
        if producer is not None:
            producer.purge()
            await asyncio.to_thread(producer.flush, _SLICE)


def producer_options(options: KafkaOptions) -> dict[str, Any]:
    """Return the properties of librdkafka. Raises OSError and ValueError for the password."""
    properties: dict[str, Any] = {
        "bootstrap.servers": ",".join(options.servers),
        "client.id": "foldmq",
        "enable.idempotence": True,
        "message.timeout.ms": int(options.timeout * 1000),
        "log_level": 0,
    }
    if options.ca_file is not None:
        properties["ssl.ca.location"] = str(options.ca_file)
    if options.password_file is not None:
        properties["sasl.password"] = read_token(options.password_file.read_text("utf-8"))
    return properties | dict(options.options)


def check_properties(properties: Mapping[str, Any], *, has_password: bool = False) -> str:
    """Return why librdkafka does not accept properties; empty if it does."""
    # Some of them need a password, whichever it is.
    password = {"sasl.password": "-"} if has_password else {}
    try:
        Producer({"log_level": 0, "enable.idempotence": True, **password, **properties})
    except KafkaException as error:
        return _text(error.args[0])
    except (TypeError, ValueError) as error:
        return escaped(str(error), _REASON)
    return ""


def _try_again(failure: KafkaError | None, others: Sequence[KafkaError]) -> TryAgain:
    """Return why messages are to be sent again: what concerns them, or the whole cluster."""
    causes = [error for error in others if error.name() != _TIMED_OUT]
    error = causes[0] if causes else failure
    if error is None:
        return TryAgain("the cluster did not acknowledge the messages in time")
    return TryAgain(_text(error), misconfigured=error.name() in _WRONG_SETTINGS)


def _text(error: KafkaError) -> str:
    return escaped(error.str(), _REASON)
