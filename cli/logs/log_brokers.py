"""The brokers of all logs of a node or cluster, asked together; their names and sessions."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from cli.common import text
from cli.logs.broker_client import LiveBroker, NoLiveBroker
from cli.settings.log_settings import LogSettings
from eventstore.datadir import DataDir
from eventstore.display import log_prefix, name
from eventstore.errors import UsageError
from eventstore.partitions import partition_names, partition_of
from protocol.mqtt.shared_filters import SHARE


def log_names(settings: LogSettings) -> list[str]:
    """Return the names of the logs of a cluster, or of the processes of a data directory.

    None are returned if there is one log.
    """
    if settings.cluster is not None:
        several = settings.partitions > 1
        return partition_names(settings.cluster, settings.partitions) if several else []
    datadir = DataDir(settings.data_dir)
    elsewhere = settings.nats_url is not None and "data_dir" not in settings.model_fields_set
    return [] if elsewhere else datadir.log_names()


def log_of_session(names: Sequence[str], session: str, chosen: str | None = None) -> str | None:
    """Return the log of a session, or the one that was chosen for a shared subscription.

    None is returned if there are no several logs, ``names``, or if the session belongs to none of
    them. Raises UsageError if another log was chosen than that of a client.
    """
    shared = session.startswith(SHARE)
    if not names or (session.startswith("$") and not shared):
        return None
    own = names[partition_of(session, len(names))]
    if chosen in names and chosen != own and not shared:
        raise UsageError(
            f"the session {name(session)} belongs to the log {own}, not to {chosen}: give --node "
            f"{own}, or leave it out"
        )
    return chosen or own


def unsure_notes(statuses: Iterable[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """Return what is not certain of states according to the status of brokers, by log."""
    return [
        log_prefix(log) + text.escaped(unsure, 2000)
        for log, status in statuses
        if (unsure := (status.get("log") or {}).get("unsure"))
    ]


_Answer = TypeVar("_Answer")
_NUMBER = re.compile(r"-p[0-9]+$")


class LogBrokers:
    """The brokers that a command is about: one, or that of each log of a node or cluster.

    One that does not answer is left out from then on: the command prints what the others have, and
    ends with :meth:`check_complete`.
    """

    def __init__(
        self,
        brokers: Sequence[LiveBroker],
        logs: Sequence[str] = (),
        directory: Path | None = None,
    ) -> None:
        """Take the brokers to ask.

        ``logs`` are the names of all logs, if there are several, even if one was chosen.
        ``directory`` is the data directory with the log, if that is on this machine.
        """
        self.logs = list(logs)
        self.absent: dict[str, NoLiveBroker] = {}
        """Why a broker does not answer, by node."""
        self.directory = directory
        self._brokers = list(brokers)

    @property
    def several(self) -> bool:
        """Whether the command is about several logs."""
        return len(self._brokers) > 1

    @property
    def present(self) -> list[LiveBroker]:
        """The brokers that have not failed to answer, in the order of their logs."""
        return [broker for broker in self._brokers if broker.node not in self.absent]

    @property
    def nodes(self) -> list[str]:
        """The nodes of all brokers."""
        return [broker.node for broker in self._brokers]

    @property
    def where(self) -> str:
        """The location of the brokers, as text."""
        return self._brokers[0].where

    @property
    def connected(self) -> bool:
        """Whether the connection to NATS is up, which they share."""
        return self._brokers[0].connected

    @property
    def owner(self) -> str:
        """The node, or the node or cluster to which several logs belong."""
        return _NUMBER.sub("", self.logs[0]) if self.several else self._brokers[0].node

    @property
    def title(self) -> str:
        """The broker, or the node or cluster with its logs, as text."""
        if not self.several:
            return f"node {name(self.owner)}"
        return f"{name(self.owner)}, {len(self.logs)} logs"

    async def unsure_notes(self) -> list[str]:
        """Return what is not certain of the brokers' states, because records were lost."""
        answers = await self.each(lambda broker: broker.ask("status"))
        return unsure_notes((self.name_of(broker), status) for broker, status in answers)

    def refreshed(self) -> LogBrokers:
        """Return the same brokers, also those that did not answer."""
        return LogBrokers(self._brokers, self.logs, self.directory)

    def of_log(self, log: str) -> LiveBroker:
        """Return the broker of a log; without a name, of the only one.

        Raises NoLiveBroker if there is no such log, UsageError if there are several without a name.
        """
        if not log:
            return self.only("this is about the broker")
        for broker in self._brokers:
            if broker.node == log:
                return broker
        raise NoLiveBroker(f"there is no log {name(log)} on {self.where}")

    def only(self, what: str) -> LiveBroker:
        """Return the only broker; raises UsageError for ``what``, which cannot be asked of all."""
        if self.several:
            raise UsageError(
                f"{what} of one log, and there are {len(self.logs)}: give --node, one of "
                f"{', '.join(self.logs)}"
            )
        return self._brokers[0]

    def of_session(self, session: str) -> LiveBroker:
        """Return the broker that a session belongs to; of a shared subscription its home.

        Raises UsageError if another log was chosen than that of a client.
        """
        if not self.several:
            log_of_session(self.logs, session, self._brokers[0].node)
            return self._brokers[0]
        own = log_of_session(self.logs, session)
        if own is None:
            return self.only(f"{name(session)} is a session")
        return self._brokers[self.logs.index(own)]

    async def each(
        self, ask: Callable[[LiveBroker], Awaitable[_Answer]]
    ) -> list[tuple[LiveBroker, _Answer]]:
        """Ask all brokers at once; return the answers in the order of the logs.

        Raises what ``ask`` raises, and NoLiveBroker if no broker answers.
        """
        asked = self.present
        results = await asyncio.gather(*map(ask, asked), return_exceptions=True)
        answers: list[tuple[LiveBroker, _Answer]] = []
        for broker, answer in zip(asked, results, strict=True):
            if isinstance(answer, NoLiveBroker):
                self.absent[broker.node] = answer
            elif isinstance(answer, BaseException):
                raise answer
            else:
                answers.append((broker, answer))
        if not answers:
            raise next(iter(self.absent.values()))
        return answers

    async def any(self, ask: Callable[[LiveBroker], Awaitable[_Answer]]) -> _Answer:
        """Return the answer of the first broker that answers, about what every log has.

        Raises what ``ask`` raises, and NoLiveBroker if no broker answers.
        """
        for broker in self.present:
            try:
                return await ask(broker)
            except NoLiveBroker as error:
                self.absent[broker.node] = error
        raise next(iter(self.absent.values()))

    @contextlib.contextmanager
    def leaving_out(self, broker: LiveBroker) -> Iterator[None]:
        """Leave a broker out that does not answer, if others are asked as well."""
        try:
            yield
        except NoLiveBroker as error:
            if not self.several:
                raise
            self.absent[broker.node] = error

    def labelled(self, broker: LiveBroker, row: dict[str, Any]) -> dict[str, Any]:
        """Return a row of a broker; it names its log if there are several."""
        return {"log": broker.node, **row} if self.several else row

    def name_of(self, broker: LiveBroker) -> str:
        """Return the name of the log of a broker; empty if there is only one."""
        return broker.node if self.several else ""

    def prefix(self, log: str) -> str:
        """Return what precedes a line about a log; empty if there is only one."""
        return log_prefix(log) if self.several else ""

    def short(self, log: str) -> str:
        """Return a name of a log that is unique among those of the same owner: ``p0``."""
        return log.removeprefix(f"{self.owner}-")

    def check_complete(self) -> None:
        """Raise NoLiveBroker if some brokers did not answer."""
        if self.absent:
            reasons = "; ".join(map(str, self.absent.values()))
            count = f"{len(self.absent)} of {text.count_of(len(self._brokers), 'log')}"
            raise NoLiveBroker(f"incomplete, without {count}: {reasons}")
