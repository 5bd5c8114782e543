"""A client of the running broker's inspector, over NATS.

A broker answers as the NATS micro service ``foldmq``, on ``foldmq.inspect.<node>.<endpoint>``.
:mod:`cli.logs.broker_search` finds it.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import nats.errors
import orjson
from nats.aio.client import Client

from eventstore.display import escaped, name
from eventstore.errors import StoreGone, UsageError
from eventstore.reading.log_source import LogSource
from protocol.errors import FoldmqError

SERVICE = "foldmq"
"""Name of the micro service; every broker is an instance of it."""
SUBJECTS = "foldmq.inspect"
ASK_SECONDS = 10.0
"""Seconds to wait for a reply."""

_SENTENCE = 1000


class NoLiveBroker(FoldmqError):  # noqa: N818 - named for the condition, as in eventstore.errors
    """No broker is running there, or it does not answer."""

    exit_code = 69


class NoDirectory(NoLiveBroker):
    """The data directory of the broker does not exist."""

    exit_code = 66


class NoAnswer(NoLiveBroker):
    """The broker may have received the request, but does not answer."""


class Refused(FoldmqError):  # noqa: N818
    """The broker refused the request; the text is its message."""

    exit_code = 1


class TooLarge(Refused):
    """The reply does not fit into a NATS message: the caller can request less at once."""


@dataclass(frozen=True, slots=True)
class LiveBroker:
    """A running broker."""

    node: str
    where: str
    """The location, as text."""
    client: Client
    log: str = ""
    """The name of its log, if its node or cluster has several."""

    @property
    def connected(self) -> bool:
        """Whether the connection to NATS is up."""
        return self.client.is_connected

    async def ask(self, endpoint: str, /, **request: Any) -> dict[str, Any]:
        """Return the broker's reply.

        Raises Refused with its message, TooLarge if the reply would be too large, NoLiveBroker if
        the broker is not there or cannot answer yet, NoAnswer if it may be there but does not
        answer.
        """
        subject = f"{SUBJECTS}.{self.node}.{endpoint}"
        try:
            data = orjson.dumps(request)
        except orjson.JSONEncodeError:
            raise UsageError("a name is not UTF-8 text") from None
        try:
            reply = await self.client.request(subject, data, timeout=ASK_SECONDS)
        except nats.errors.NoRespondersError:
            raise NoLiveBroker(
                f"no broker of node {name(self.node)} answers on {self.where}: check that it is "
                "running"
            ) from None
        except (TimeoutError, nats.errors.Error, OSError) as error:
            why = "time-out" if isinstance(error, TimeoutError) else escaped(str(error))
            raise NoAnswer(
                f"the broker of node {name(self.node)} on {self.where} does not answer: {why}"
            ) from None
        answer = as_object(reply.data)
        if answer is None:
            raise NoAnswer(
                f"the broker of node {name(self.node)} on {self.where} sent a reply that this "
                "foldmq does not understand: check that both have the same version"
            )
        if answer.get("not_ready"):
            why = _sentence(str(answer.get("error")))
            raise NoLiveBroker(f"the broker of node {name(self.node)} cannot answer yet: {why}")
        if "error" in answer:
            refusal = TooLarge if answer.get("too_large") else Refused
            raise refusal(_sentence(str(answer["error"])))
        return answer

    async def pages(self, endpoint: str, /, **request: Any) -> AsyncIterator[dict[str, Any]]:
        """Yield the pages of a list: replies with ``rows``."""
        async for page in self.pages_from(await self.ask(endpoint, **request)):
            yield page

    async def pages_from(self, page: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Yield a page of a list, and the pages behind it."""
        yield page
        while page.get("more"):
            page = await self.ask("page", cursor=page["cursor"])
            yield page

    async def rows(self, endpoint: str, /, **request: Any) -> AsyncIterator[dict[str, Any]]:
        """Yield the rows of all pages of a list."""
        async for page in self.pages(endpoint, **request):
            for row in page["rows"]:
                yield row


def as_object(data: bytes) -> dict[str, Any] | None:
    """Return a JSON object; None if it is none."""
    try:
        answer = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    return answer if isinstance(answer, dict) else None


def _sentence(text: str) -> str:
    """Return the broker's message with control characters escaped; it escapes names itself."""
    return text[:_SENTENCE] if text.isprintable() else escaped(text, _SENTENCE)


_FROM_MEMORY = "the NATS server still answers, from its memory"


async def store_damage(source: LogSource) -> str | None:
    """Return what happened to the files of a log, in a sentence; None: nothing that is known."""
    if not source.live:
        return None
    try:
        broker = LiveBroker(await source.node(), source.where, source.client)
        status = await broker.ask("status")
    except FoldmqError:  # no broker runs, or it does not answer
        return None
    damage = (status.get("log") or {}).get("store_damage")
    return f"{damage}; {_FROM_MEMORY}" if damage else None


async def require_stored(source: LogSource) -> None:
    """Raise StoreGone if the files of a log are not where its broker stored them."""
    damage = await store_damage(source)
    if damage is not None:
        raise StoreGone(damage)
