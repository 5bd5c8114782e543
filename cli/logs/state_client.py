"""The state of a running broker, requested over NATS from ``actors.maintenance.state_digests``."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import nats.errors
import orjson

from actors.maintenance.state_digests import subject_of
from cli.common import text
from cli.common.progress_bar import progress
from eventstore.format.positions import Position, sequence_of
from eventstore.reading.log_source import LogSource
from eventstore.reading.polling import Polling
from projections.past.live_state import LivePage, LiveSession, LiveState
from projections.state.digests import digest_number
from projections.state.snapshot import decode_session
from protocol.errors import FoldmqError

_SECONDS = 10.0
_TRIES = 5
_AGAIN = 1.0
_POLL = 0.05
_TIMEOUT = 30.0
"""Seconds to wait until the log contains the state that the broker reported."""


class NoBroker(FoldmqError):  # noqa: N818 - named for the condition, as in eventstore.errors
    """No broker answers, or it stopped answering."""

    exit_code = 69

    def __init__(self, node: str, why: str) -> None:
        super().__init__(
            f"no broker answers for node {text.name(node)} ({why}): start it, or give --stored "
            "to check the stored projections"
        )
        self.node = node
        self.why = why


class Unanswered(FoldmqError):  # noqa: N818
    """The broker did not send all of its state."""

    exit_code = 69


class StateClient:
    """Requests the state of a node's broker."""

    def __init__(self, source: LogSource, node: str) -> None:
        self._source = source
        self._node = node
        self._broker: str | None = None

    async def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return a reply; raises NoBroker if there is none, Unanswered if it is an error."""
        answer = await self._ask(request)
        if not isinstance(answer, dict):
            raise TypeError("an answer is a JSON object")
        who = answer.get("broker")
        if self._broker not in (None, who):
            raise Unanswered("the broker was restarted meanwhile: try again")
        self._broker = who
        if "error" in answer:
            reason = text.escaped(str(answer["error"]))
            raise Unanswered(f"the broker of node {text.name(self._node)} answers: {reason}")
        return answer

    async def _ask(self, request: dict[str, Any]) -> object:
        data = orjson.dumps(request)
        for _ in range(_TRIES):
            try:
                reply = await self._source.client.request(
                    subject_of(self._node), data, timeout=_SECONDS
                )
            except nats.errors.NoRespondersError:
                if self._broker is None:
                    raise NoBroker(self._node, "it is not running, or hangs") from None
                await asyncio.sleep(_AGAIN)  # it may be reconnecting to NATS
                continue
            except (TimeoutError, nats.errors.Error, OSError):
                continue
            answer: object = orjson.loads(reply.data)
            return answer
        raise NoBroker(self._node, "time-out")

    async def all(self) -> LiveState:
        """Return the digests of all sessions and retained messages."""
        with self._understood():
            page = await self.ask({})
            state = LiveState(page["node"], page["position"])
            key = page["id"]
            number = received = 0
            with progress("querying the broker", sum(page["total"]), "states") as update:
                while page["more"]:
                    number += 1
                    page = await self.ask({"id": key, "page": number})
                    state.pages.append(_page(page))
                    received += len(page["sessions"]) + len(page["retained"])
                    update(received)
            for part in state.pages:
                state.sessions += sum(digest is not None for digest in part.sessions.values())
                state.retained += sum(digest is not None for digest in part.retained.values())
            return state

    async def session(self, name: str) -> LiveSession:
        """Return the current state of a session."""
        with self._understood():
            page = await self.ask({"session": name})
            key, number, bound = page["id"], 0, page["position"]
            short = None if page["digest"] is None else digest_number(page["digest"])
            if page["parts"] is None:
                return LiveSession(bound, None, short, None)
            parts, pending = list(page["parts"]), page["pending"]
            while page["more"]:
                number += 1
                page = await self.ask({"id": key, "page": number})
                parts += page["parts"]
            try:
                return LiveSession(bound, decode_session(name, parts), short, pending)
            except (ValueError, KeyError, TypeError, IndexError):
                return LiveSession(bound, None, short, pending)

    async def until_stored(self, bound: Position) -> int:
        """Wait until the log contains everything before a position; return where to stop reading.

        That is the record in which the turn ends. Raises Unanswered on timeout, or if the broker
        was replaced meanwhile.
        """
        needed = sequence_of(bound - 1)
        polling = Polling(_POLL, _TIMEOUT)
        while True:
            if (await self._source.bounds())[1] >= needed:
                if not needed or (await self._source.some([needed]))[-1].last:
                    break
                needed += 1  # a turn counts as a whole
            elif polling.expired:
                raise Unanswered(
                    "the log lacks state that the broker has in memory, because it cannot be "
                    "written: see the broker's log"
                )
            else:
                await polling.wait()
        # The state reported by another broker may never have reached the log.
        await self.ask({"retained": ""})
        return needed

    async def retained(self, topic: str) -> tuple[Position, dict[str, Any] | None]:
        """Return a current retained message: QoS, position, size and digest."""
        with self._understood():
            answer = await self.ask({"retained": topic})
            return answer["position"], answer["message"]

    @contextlib.contextmanager
    def _understood(self) -> Iterator[None]:
        """Raise Unanswered if a reply lacks an expected field."""
        try:
            yield
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise Unanswered(
                f"the broker of node {text.name(self._node)} sent a reply that this foldmq does "
                f"not understand ({type(error).__name__}): check that both have the same version"
            ) from None


def _page(page: dict[str, Any]) -> LivePage:
    sessions, retained = (
        {name: None if digest is None else digest_number(digest) for name, digest in page[kind]}
        for kind in ("sessions", "retained")
    )
    return LivePage(page["position"], sessions, retained)
