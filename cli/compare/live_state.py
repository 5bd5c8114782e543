"""What a running broker says of its state, asked over NATS; see ``maintenance.attestation``."""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

import nats.errors
import orjson

from actors.maintenance.attestation import subject_of
from cli.common import text
from cli.common.progress import progress
from cli.logsource.source import Source
from eventstore.format import Position, sequence_of
from projections.state import SessionState, decode_session
from protocol.errors import FoldmqError

_SECONDS = 10.0
_TRIES = 5
_AGAIN = 1.0
_POLL = 0.05
_PATIENCE = 30.0
"""Seconds in which the log must hold what the broker told of."""


class NoBroker(FoldmqError):  # noqa: N818 - named for the condition, as in eventstore.errors
    """No broker answers, or not to the end."""

    exit_code = 69

    def __init__(self, node: str, why: str) -> None:
        super().__init__(
            f"no broker answers for node {text.name(node)} ({why}): start it, or give --stored to "
            "check what is stored"
        )
        self.node = node
        self.why = why


class Unanswered(FoldmqError):  # noqa: N818
    """The broker did not tell all of its state."""

    exit_code = 69


@dataclass(slots=True)
class Page:
    """Digests as of a position; None for what had ended by then."""

    bound: Position
    """All before it had happened."""
    sessions: dict[str, int | None]
    retained: dict[str, int | None]


@dataclass(slots=True)
class Attested:
    """All that a broker said."""

    node: str
    begun: Position
    """Every session and topic there was then is on a page."""
    pages: list[Page] = field(default_factory=list)
    sessions: int = 0
    retained: int = 0

    @property
    def end(self) -> Position:
        """The position of the last page."""
        return self.pages[-1].bound if self.pages else self.begun


@dataclass(slots=True)
class Told:
    """A session as the broker has it."""

    bound: Position
    state: SessionState | None
    """None: no such session, or one that cannot be read."""
    digest: int | None
    pending: list[Any] | None


def as_number(digest: str) -> int:
    """Return a digest as it is kept: by the million."""
    return int(digest, 16)


class Asking:
    """Asks the broker of a node."""

    def __init__(self, source: Source, node: str) -> None:
        self._source = source
        self._node = node
        self._broker: str | None = None

    async def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return an answer. Raises NoBroker when there is none, Unanswered when it is a refusal."""
        answer = await self._ask(request)
        if not isinstance(answer, dict):
            raise TypeError("an answer is a JSON object")
        who = answer.get("broker")
        if self._broker not in (None, who):
            raise Unanswered("the broker was started anew meanwhile: ask again")
        self._broker = who
        if "error" in answer:
            said = text.escaped(str(answer["error"]))
            raise Unanswered(f"the broker of node {text.name(self._node)} answers: {said}")
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
                    raise NoBroker(self._node, "none is there") from None
                await asyncio.sleep(_AGAIN)  # it may be about to connect to NATS again
                continue
            except (TimeoutError, nats.errors.Error, OSError):
                continue
            answer: object = orjson.loads(reply.data)
            return answer
        raise NoBroker(self._node, "time-out")

    async def all(self) -> Attested:
        """Return what the broker says of all sessions and retained messages."""
        page = await self.ask({})
        said = Attested(page["node"], page["position"])
        key = page["id"]
        number = done = 0
        with progress("asking the broker", sum(page["total"]), "states") as update:
            while page["more"]:
                number += 1
                page = await self.ask({"id": key, "page": number})
                said.pages.append(_page(page))
                done += len(page["sessions"]) + len(page["retained"])
                update(done)
        for one in said.pages:
            said.sessions += sum(digest is not None for digest in one.sessions.values())
            said.retained += sum(digest is not None for digest in one.retained.values())
        return said

    async def session(self, name: str) -> Told:
        """Return a session as it is now."""
        page = await self.ask({"session": name})
        key, number, bound = page["id"], 0, page["position"]
        short = None if page["digest"] is None else as_number(page["digest"])
        if page["parts"] is None:
            return Told(bound, None, short, None)
        parts, pending = list(page["parts"]), page["pending"]
        while page["more"]:
            number += 1
            page = await self.ask({"id": key, "page": number})
            parts += page["parts"]
        try:
            return Told(bound, decode_session(name, parts), short, pending)
        except (ValueError, KeyError, TypeError, IndexError):
            return Told(bound, None, short, pending)

    async def until_stored(self, bound: Position) -> int:
        """Wait until everything before a position is in the log; return up to where to read it.

        That is the record with which the turn ends. Raises Unanswered when it does not get
        there, or the broker is not any more the one that was asked.
        """
        needed = sequence_of(bound - 1)
        deadline = time.monotonic() + _PATIENCE
        while True:
            if (await self._source.bounds())[1] >= needed:
                if not needed or (await self._source.some([needed]))[-1].last:
                    break
                needed += 1  # a turn counts as a whole
            elif time.monotonic() > deadline:
                raise Unanswered(
                    "the log does not hold what the broker has in memory: it cannot be written, "
                    "see the broker's log"
                )
            else:
                await asyncio.sleep(_POLL)
        # What another broker told of may never have come into the log.
        await self.ask({"retained": ""})
        return needed

    async def retained(self, topic: str) -> tuple[Position, dict[str, Any] | None]:
        """Return a retained message as it is now: QoS, position, size and digest."""
        answer = await self.ask({"retained": topic})
        return answer["position"], answer["message"]


def _page(page: dict[str, Any]) -> Page:
    sessions, retained = (
        {name: None if digest is None else as_number(digest) for name, digest in page[kind]}
        for kind in ("sessions", "retained")
    )
    return Page(page["position"], sessions, retained)
