"""Queries to the broker in portions that fit into a reply.

A name may have 64 KiB, while a NATS server may allow only 1 MiB per message: then the next queries
request less.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cli.live import TooLarge

if TYPE_CHECKING:
    from cli.live import ReconnectingClient

ACTORS_ASKED = 100
"""Maximum number of rows of the list of actors."""
SESSION_ROWS = 200
"""Maximum number of items of each list of a session."""
_LESS = 4


class Questions:
    """Sends queries over a link, and remembers how much fits into a reply."""

    def __init__(self, link: ReconnectingClient) -> None:
        self._link = link
        self._actors = ACTORS_ASKED
        self._rows = SESSION_ROWS
        self.topics_fit = True
        """Whether the busiest topics fit into a reply."""

    async def status(self, *, topics: bool) -> dict[str, Any]:
        """Request the status; with ``topics`` also the busiest topics, if they fit."""
        if topics and self.topics_fit:
            try:
                return await self._link.ask("status", topics=True)
            except TooLarge:
                self.topics_fit = False
        return await self._link.ask("status", topics=False)

    async def actors(self, by: str, match: str | None = None) -> list[dict[str, Any]]:
        """Request the first actors in an order, those that match a pattern."""
        wanted = {} if match is None else {"match": match}
        while True:
            try:
                top = {"by": by, "count": self._actors}
                answer = await self._link.ask("actors", top=top, **wanted)
            except TooLarge:
                if self._actors == 1:
                    raise
                self._actors = max(1, self._actors // _LESS)
            else:
                rows: list[dict[str, Any]] = answer["rows"]
                return rows

    async def actor(self, actor: str) -> dict[str, Any]:
        """Request one actor; if it is a session, in full."""
        return await self._much("actor", id=actor)

    async def session(self, client: str) -> dict[str, Any]:
        """Request a session."""
        return await self._much("session", client=client)

    async def _much(self, endpoint: str, **request: Any) -> dict[str, Any]:
        while True:
            try:
                return await self._link.ask(endpoint, most=self._rows, **request)
            except TooLarge:
                if self._rows == 1:
                    raise
                self._rows = max(1, self._rows // _LESS)

    async def receivers(self, topic: str) -> dict[str, Any]:
        """Request the first page of receivers of a topic."""
        return await self._link.ask("subscriptions", topic=topic)
