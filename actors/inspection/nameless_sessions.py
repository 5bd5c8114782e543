"""Ends the sessions whose client, or whose user, is known only by a token that was erased."""

from __future__ import annotations

import asyncio
from itertools import chain
from typing import TYPE_CHECKING, Final

from actors.node.operator_commands import OperatorCommand
from actors.session.session_messages import Remove

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from actors.session.node_context import NodeContext

_AT_ONCE: Final = 128
"""Sessions looked at in one turn of the event loop."""


def sessions_of(
    node: NodeContext, is_meant: Callable[[str, str | None], bool]
) -> Iterator[str | None]:
    """Yield the sessions that are meant by name and user; None after a part of all."""
    sessions, names = node.state.sessions, node.names
    if names is None:
        return
    for number, name in enumerate(chain.from_iterable(sessions.parts()), 1):
        state = sessions.peek(name) if names.replaces_users else None
        if is_meant(name, state.user if state is not None else None):
            yield name
        if number % _AT_ONCE == 0:
            yield None


async def remove_nameless(node: NodeContext, by: str) -> int:
    """End these sessions, with their connections; return how many, once that is on disk.

    A session that begins meanwhile has a name: the others are refused.
    """
    names, commands = node.names, list[OperatorCommand]()
    if names is None:
        return 0
    for name in sessions_of(node, names.is_erased):
        if name is None:
            await asyncio.sleep(0)
        elif name in node.state.sessions:
            command = OperatorCommand("remove_session", by, name, name)
            command.one_of_many = True
            commands.append(command)
            node.tell_session(node.directory.session(name), Remove(command, 0))
    for command in commands:
        await command.answer
    return sum(command.refusal is None for command in commands)
