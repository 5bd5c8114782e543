"""Conditional append of one record to a log by a node that does not lead yet.

The record names the end of the log that it expects. If several nodes append after the same record,
the log stores one of the records and refuses the others.
"""

from __future__ import annotations

import asyncio
import contextlib
from enum import Enum
from typing import TYPE_CHECKING

import nats.errors
import orjson

from eventstore.errors import LogUnavailable
from eventstore.format.records import link_of, message_id
from eventstore.log.record_reader import LogTail, read_tail
from eventstore.nats.jetstream import WRONG_LAST_SEQUENCE

if TYPE_CHECKING:
    from eventstore.nats.direct_client import DirectClient

_ANSWER_SECONDS = 2.0
_PAUSE_SECONDS = 0.1


class Appended(Enum):
    """The result of an append."""

    STORED = "stored"
    REFUSED = "refused"
    """The log ends at another record."""
    UNKNOWN = "unknown"
    """JetStream did not answer: the record may be stored later."""


async def append_behind(
    nc: DirectClient,
    stream: str,
    subject: str,
    tail: LogTail,
    data: bytes,
    attempts: int = 3,
) -> Appended:
    """Append a record after the last known record of a log, or not at all.

    The server does not compare the link of that record: on NATS 2.15.1 a restarted replica may
    not know it, and reject a record that the others store. Readers compare it.
    """
    link = link_of(data)
    headers = {
        "Nats-Expected-Last-Sequence": str(tail.sequence),
        "Nats-Msg-Id": message_id(link),
    }
    for _ in range(attempts):
        outcome = await _attempt(nc, subject, data, headers, tail.sequence + 1)
        if outcome is not Appended.UNKNOWN:
            return outcome
        await asyncio.sleep(_PAUSE_SECONDS)
        with contextlib.suppress(LogUnavailable):
            found = await read_tail(nc, stream, subject, _ANSWER_SECONDS)
            if found.sequence > tail.sequence:
                return Appended.STORED if found.link == link else Appended.REFUSED
    return Appended.UNKNOWN


async def _attempt(
    nc: DirectClient, subject: str, data: bytes, headers: dict[str, str], place: int
) -> Appended:
    try:
        reply = await nc.request(subject, data, timeout=_ANSWER_SECONDS, headers=headers)
        answer = orjson.loads(reply.data)
    except (TimeoutError, nats.errors.Error, ValueError, OSError):
        return Appended.UNKNOWN
    error = answer.get("error")
    if error is None:
        return Appended.STORED if answer.get("seq") == place else Appended.REFUSED
    if error.get("err_code") == WRONG_LAST_SEQUENCE:
        return Appended.REFUSED
    return Appended.UNKNOWN
