"""Attestation: digests of a running broker's state, for comparison with the log.

A client of the broker's NATS account sends JSON objects and gets one back for each:

``{}``
    begins: ``id``, ``node``, ``total`` (number of sessions and retained topics) and an empty
    page 0.
``{"id": ..., "page": N}``
    the next page, or the last one again: ``sessions`` ([client identifier, digest or null if it
    ended meanwhile]), ``retained`` ([topic, digest or null]), ``more``. Each session and topic of
    the beginning is on one page.
``{"session": NAME}``
    the whole state of one session: ``parts`` (``projections.state.snapshot``; null: no such
    session), ``digest`` and ``pending``; if there is ``more``, the other parts are pages.
``{"retained": TOPIC}``
    the retained message: ``message`` (null, or ``qos``, ``ref``, ``size``, ``digest``).

Every answer contains ``position``, the position that the state reflects, and ``broker``, which
identifies this run of the broker. Errors are answered with ``error``. A page is built between two
turns in about a millisecond; frozen sessions stay frozen, and nothing is written.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Any

import orjson
import structlog

from projections.state.digests import (
    NO_DIGEST,
    digest,
    pending_of,
    retained_digest,
    session_digest,
    session_texts,
)
from protocol.errors import FoldmqError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from actors.session.node_context import NodeContext
    from projections.state.node_state import NodeState

_log = structlog.get_logger("foldmq")

_SLICE = 0.001
"""Approximate seconds for building a page."""
_SLICE_SHARE = 6
"""Length of the pause after a page, relative to the page."""
_PAGE_BYTES = 256 * 1024
"""Approximate maximum size of a page: twice as much fits into any NATS message."""
_ENTRY_BYTES = 32
_TEXT_FACTOR = 6
"""Maximum bytes of a character in JSON."""
_REQUEST_BYTES = 512 * 1024
_MAX_OPEN = 4
_LIFE = 60.0
"""Seconds without a request after which an attestation is dropped."""


def subject_of(node: str) -> str:
    """Return the NATS subject on which the broker of a node answers."""
    return f"foldmq.verify.{node}"


# ------------------------------------------------------------------------------- answers


class _BadRequest(FoldmqError):  # noqa: N818 - named for the condition, as in eventstore.errors
    """A request that cannot be answered."""


class _OpenPages:
    """Pages, built one at a time when they are requested."""

    __slots__ = ("last", "more", "number", "pages", "used")

    def __init__(self, pages: Iterator[dict[str, Any]]) -> None:
        self.pages = pages
        self.number = -1
        self.last = b""
        """The last page, in case the caller did not get it."""
        self.more = True
        self.used = 0.0
        """Monotonic time of the last request."""


class StateDigestService:
    """Answers attestation requests for a recovered broker."""

    def __init__(self, node: NodeContext) -> None:
        self._node = node
        self._begun: dict[str, _OpenPages] = {}
        self._watched = False
        self._name = secrets.token_hex(8)

    def answer(self, data: bytes) -> tuple[bytes, float]:
        """Return the answer to a request, and the seconds to wait before the next."""
        started = time.perf_counter()
        try:
            reply = self._answer(_request(data))
        except _BadRequest as refused:
            reply = self._encode_answer({"error": str(refused)})
        except Exception as error:  # noqa: BLE001 - a state that is broken is for others to see
            _log.error("state cannot be attested", exc_info=error)
            reply = self._encode_answer(
                {"error": f"the state cannot be attested: {type(error).__name__}"}
            )
        return reply, (time.perf_counter() - started) * _SLICE_SHARE

    def _answer(self, request: dict[str, Any]) -> bytes:
        self._forget()
        self._node.journal.flush()  # the caller reads the log up to the position of the answer
        fields = set(request)
        if not fields:
            return self._begin(self._state())
        if fields == {"id", "page"}:
            return self._page(_text(request, "id"), request["page"])
        if fields == {"session"}:
            return self._begin(self._session(_text(request, "session")))
        if fields == {"retained"}:
            return self._encode_answer(self._retained(_text(request, "retained")))
        raise _BadRequest("a request must be {}, or have id and page, or session, or retained")

    def _begin(self, pages: Iterator[dict[str, Any]]) -> bytes:
        if len(self._begun) >= _MAX_OPEN:
            complete = next((key for key, opened in self._begun.items() if not opened.more), None)
            if complete is None:
                raise _BadRequest("busy: other attestations are in progress, try again in a minute")
            del self._begun[complete]
        key = secrets.token_hex(8)
        begun = _OpenPages(pages)
        page = self._next(key, begun)
        self._begun[key] = begun
        if not self._watched:
            self._watched = True
            self._node.timers.after(_LIFE, self._look)
        return page

    def _page(self, key: str, number: object) -> bytes:
        begun = self._begun.get(key)
        if begun is None:
            raise _BadRequest("unknown id: it has expired, or the broker was restarted")
        begun.used = self._node.clock.monotonic()
        if number == begun.number:
            return begun.last
        if type(number) is not int or number != begun.number + 1 or not begun.more:
            raise _BadRequest("no such page: pages must be requested in order")
        return self._next(key, begun)

    def _next(self, key: str, begun: _OpenPages) -> bytes:
        page = next(begun.pages)
        begun.number += 1
        begun.more = page["more"]
        begun.used = self._node.clock.monotonic()
        begun.last = self._encode_answer({"id": key, **page})
        return begun.last

    def _encode_answer(self, answer: dict[str, Any]) -> bytes:
        return orjson.dumps({"broker": self._name, **answer})

    def _forget(self) -> None:
        before = self._node.clock.monotonic() - _LIFE
        self._begun = {key: opened for key, opened in self._begun.items() if opened.used > before}

    def _look(self) -> None:
        self._forget()
        self._watched = bool(self._begun)
        if self._watched:
            self._node.timers.after(_LIFE, self._look)

    # Answers.

    def _state(self) -> Iterator[dict[str, Any]]:
        node = self._node
        names, topics = node.state.sessions.names(), node.state.retained.topics()
        yield {
            "position": node.journal.next_position,
            "node": node.options.node,
            "total": [len(names), len(topics)],
            "sessions": [],
            "retained": [],
            "more": bool(names or topics),
        }
        passed, remaining = 0, len(names) + len(topics)
        while remaining:
            node_state, end = node.state, time.perf_counter() + _SLICE
            sessions: list[Any] = []
            retained: list[Any] = []
            room = _PAGE_BYTES
            while remaining and room > 0:
                if passed < len(names):
                    key = names[passed]
                    sessions.append([key, _digest_or_inconsistent(node_state, key)])
                else:
                    key = topics[passed - len(names)]
                    message = node_state.retained.get(key)
                    retained.append([key, None if message is None else retained_digest(message)])
                passed, remaining = passed + 1, remaining - 1
                room -= _TEXT_FACTOR * len(key) + _ENTRY_BYTES
                if time.perf_counter() > end:
                    break
            yield {
                "position": node.journal.next_position,
                "sessions": sessions,
                "retained": retained,
                "more": bool(remaining),
            }

    def _session(self, name: str) -> Iterator[dict[str, Any]]:
        node_state, here = self._node.state, self._node.journal.next_position
        texts = session_texts(node_state, name)
        if texts is None:
            yield {
                "position": here,
                "digest": None,
                "parts": None,
                "pending": None,
                "more": False,
            }
            return
        about = {
            "position": here,
            "digest": digest(texts, node_state.retained.pending(name)),
            "pending": pending_of(node_state, name),
        }
        for number, text in enumerate(texts, 1):
            yield {**about, "parts": [orjson.Fragment(text)], "more": number < len(texts)}

    def _retained(self, topic: str) -> dict[str, Any]:
        message = self._node.state.retained.get(topic)
        facts = None
        if message is not None:
            size, short = len(message.payload), retained_digest(message)
            facts = {"qos": message.qos, "ref": message.ref, "size": size, "digest": short}
        return {"position": self._node.journal.next_position, "message": facts}


def _digest_or_inconsistent(node_state: NodeState, name: str) -> str | None:
    """Return the digest of a session; an impossible digest if its state is inconsistent."""
    try:
        return session_digest(node_state, name)
    except Exception as error:  # noqa: BLE001 - all the others are to be told all the same
        _log.error("state of a session cannot be attested", client=name, exc_info=error)
        return NO_DIGEST


def _request(data: bytes) -> dict[str, Any]:
    if len(data) > _REQUEST_BYTES:
        raise _BadRequest(f"a request must have at most {_REQUEST_BYTES} bytes")
    try:
        request = orjson.loads(data)
    except ValueError:
        raise _BadRequest("a request must be JSON") from None
    if not isinstance(request, dict):
        raise _BadRequest("a request must be a JSON object")
    return request


def _text(request: dict[str, Any], field: str) -> str:
    value = request[field]
    if not isinstance(value, str):
        raise _BadRequest(f"{field} must be a string")
    return value
