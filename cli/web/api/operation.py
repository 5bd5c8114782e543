"""What an operation of the API is, and what it gets to answer a request."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from pydantic import BaseModel

from cli.logs.logs import Logs
from cli.web.api.live_lists import LiveLists
from cli.web.api.parameters import NoParams, Params
from cli.web.tokens import Role
from cli.web.web_log_client import WebLogClient


class Cost(enum.Enum):
    """How much work an operation is."""

    CHEAP = "cheap"
    DEAR = "dear"
    """It may read much of the log: few run at the same time."""


@dataclass(frozen=True, slots=True)
class Call:
    """What an operation gets beside its parameters."""

    link: WebLogClient
    lists: LiveLists
    payloads: bool = False
    """Whether the caller may see payloads."""
    permits: Callable[[str], bool] | None = None
    """Whether the caller may see messages on a topic; None: all."""
    start: str | None = None
    """Where a list continues: :attr:`Item.place` of the last item before."""


class Item(NamedTuple):
    """An item of a list."""

    value: dict[str, Any]
    place: str
    """Where the list continues behind it."""


class StreamMark(NamedTuple):
    """Something about a list that is followed."""

    event: str
    """``gap``: records were deleted before they could be read; ``unsure``: records were lost;
    ``live``: all that there was has been given."""
    about: dict[str, Any]
    place: str = ""
    """Where the list continues behind it; empty: not known."""


def unsure_mark(notes: Iterable[str]) -> Iterator[StreamMark]:
    """Yield what is not certain of an answer, because records were lost; nothing if all is."""
    if shown := [note.strip() for note in notes]:
        yield StreamMark("unsure", {"unsure": shown})


ObjectFunction: TypeAlias = "Callable[[Call, Any], Awaitable[dict[str, Any]]]"
ListFunction: TypeAlias = "Callable[[Call, Any], AsyncIterator[Item | StreamMark]]"


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation: a route of the API, and a tool for language models."""

    name: str
    method: str
    path: str
    """Below the base; parameters in braces are among ``params``."""
    params: type[Params | NoParams]
    view: type[BaseModel]
    """The answer, or the items of a list."""
    role: Role
    cost: Cost
    function: ObjectFunction | ListFunction | None
    """None: it changes something, which needs the request itself."""
    doc: str
    """What it answers: a line, and more below it."""
    command: str
    """The command that answers the same."""
    is_list: bool = False
    is_snapshot: bool = True
    """Of a list: whether its pages are of one moment, or of records that do not change."""
    moments: tuple[str, ...] = ()
    """The parameters that fix the moment: the answer never changes if all are given."""
    body: type[BaseModel] | None = None
    """The body of the request."""
    may_follow: bool = False
    """Whether the list can go on with what happens later."""

    @property
    def path_params(self) -> tuple[str, ...]:
        """The parameters that are part of the path."""
        return tuple(part.partition("}")[0] for part in self.path.split("{")[1:])


@contextlib.asynccontextmanager
async def open_sources(call: Call, log: str | None = None) -> AsyncIterator[Logs]:
    """Open the logs, or one of them, which then has no name; raises as ``WebLogClient.log``."""
    async with call.link.sources(log or "") as named:
        logs = Logs([""] if log else named)
        logs.update(zip(logs.names, named.values(), strict=True))
        yield logs


def positions_text(lasts: Mapping[str, int]) -> str:
    """Return the last records of logs as text: ``12``, or ``p0:12,p1:7``."""
    return ",".join(
        f"{log}:{sequence}" if log else str(sequence) for log, sequence in lasts.items()
    )


def refusal(role: Role, needed: Role, *, changes: bool) -> str:
    """Return why a role does not permit an operation that needs another one; empty: it does.

    ``changes``: tokens with the role operate may make changes.
    """
    if needed is Role.PUBLISH:
        if role is Role.PUBLISH or (role.makes_changes and changes):
            return ""
        if role.makes_changes:
            return "tokens with the role operate may publish if web_operate is set"
        return "this needs a token with the role publish"
    if role.sees_payloads if needed is Role.VIEW_ALL else role.views:
        return ""
    if role is Role.PUBLISH:
        return f"a token with the role publish may only publish: this needs the role {needed}"
    return f"this needs a token with the role {needed}, or a higher one"
