"""Erases names for which a log was asked while its broker was away.

The broker of another log has stored the request beside the file with the keys. It is carried out
at the start, before a client connects; or soon, if this broker began just then.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import structlog

from actors.inspection.inspector import Refused, text
from actors.inspection.nameless_sessions import remove_nameless
from actors.maintenance.recovery import until_durable
from eventstore.format.node_events import LeaderProved
from eventstore.log.key_file import file_of_log
from eventstore.log.name_requests import (
    NameRequest,
    remove_request,
    store_request,
    stored_requests,
)
from protocol.errors import FoldmqError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from actors.inspection.erasure import Erasure
    from actors.session.node_context import NodeContext

_log = structlog.get_logger("foldmq")

in_thread = asyncio.to_thread

_LOOK_EVERY: Final = 5.0
"""Seconds between two looks whether there are requests."""


class RequestedNames:
    """The requests of other logs to erase names here, and those of this log for others."""

    def __init__(self, node: NodeContext, erasure: Erasure) -> None:
        self._node = node
        self._erasure = erasure

    async def store(self, request: Mapping[str, Any], by: str) -> dict[str, Any] | FoldmqError:
        """Store the request to erase a name for each of ``logs``, whose brokers are away.

        Returns the error if one cannot be stored.
        """
        node, keys, logs = self._node, self._node.log.keys, request.get("logs")
        own = node.options.node
        if not isinstance(logs, list) or not node.logs.issuperset(logs) or own in logs:
            return Refused("logs must be names of other logs of this node")
        if keys is None or node.names is None:
            return Refused("no names have tokens: personal_clients and personal_users are not set")
        try:
            asked = NameRequest.of(text(request, "kind"), text(request, "name"), by)
            for log in logs:
                await in_thread(store_request, asked, file_of_log(keys.path, own, log))
        except FoldmqError as error:
            return error
        return {"logs": logs}

    async def carry_out(self) -> bool:
        """Erase the names that are asked for; return whether there were requests.

        Sessions do not end yet. Raises KeyFileError, and what prevents the erasure; the requests
        are kept then, and the next call goes on.
        """
        node, keys = self._node, self._node.log.keys
        if keys is None or node.names is None or node.exchange is None:
            return False
        requests = await in_thread(stored_requests, keys.path)
        if not requests:
            return False
        entries: dict[str, str] = {}
        for named, entry in node.names.entries():
            if named is None:
                await asyncio.sleep(0)
                continue
            for request in requests:
                if request.is_for(*named):
                    entries[entry] = request.by
        for entry, by in entries.items():
            numbers = [(entry, key.number) for key in node.state.keys.of(entry)]
            await self._erasure.erase(numbers, by)
        await self._erasure.destroy_pending()  # of an earlier call, after which no name is found
        await self._prove_leadership()
        for request in requests:
            await in_thread(remove_request, request)
        return True

    async def _prove_leadership(self) -> None:
        """Return once a record shows that this node has all names; raises what prevents it.

        A node of a cluster may have been replaced as the leader, and not know the newest names.
        """
        node = self._node
        if node.state.epoch:
            node.emit(LeaderProved(node.state.epoch))
            await until_durable(node, node.journal.end)
        if node.failed.done():
            raise node.failed.result()

    async def watch(self) -> None:
        """Look for requests again and again: this broker may have begun just before one."""
        node = self._node
        while not (node.draining or node.failed.done()):
            await asyncio.sleep(_LOOK_EVERY)
            try:
                if await self.carry_out():
                    await remove_nameless(node, "foldmq")
            except FoldmqError as error:
                _log.warning("a name is not erased yet", reason=str(error))
