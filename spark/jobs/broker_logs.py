"""Finds the logs of brokers that have several, among all logs that are audited."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from eventstore.partitions import partition_names, split_log_name
from projections.audit.home_rule import LogPlace
from spark.jobs.log_summary import BEYOND_ALL

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark.jobs.log_summary import LogSummary


class BrokerLogs(NamedTuple):
    """All logs of a broker, in the order of their numbers."""

    names: tuple[str, ...]
    whole: bool
    """Whether none of them is damaged: only then are they compared."""

    def places(self) -> dict[str, LogPlace]:
        """Return the place of each log."""
        return {name: LogPlace(number, self.names) for number, name in enumerate(self.names)}


def find_brokers(logs: Mapping[str, LogSummary]) -> tuple[list[BrokerLogs], list[str]]:
    """Return the brokers all of whose logs are audited, and remarks about others.

    Logs belong together if their names say so and one of them takes messages of another.
    """
    there: dict[str, set[int]] = defaultdict(set)
    followed: dict[str, set[int]] = defaultdict(set)
    for node, log in logs.items():
        for name in (node, *log.follows):
            found = split_log_name(name)
            if found is not None:
                (there if name == node else followed)[found[0]].add(found[1])
    brokers, remarks = [], []
    for base, numbers in sorted(followed.items()):
        names = partition_names(base, max(numbers | there[base]) + 1)
        missing = [name for name in names if name not in logs]
        if missing:
            some = ", ".join(name for name in names if name in logs)
            remarks.append(
                f"{some}: what lies between the logs is not audited, because "
                f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not read"
            )
            continue
        damaged = [name for name in names if logs[name].trusted < BEYOND_ALL]
        if damaged:
            remarks.append(
                f"{', '.join(names)}: the logs are not compared with each other, because "
                f"{', '.join(damaged)} {'is' if len(damaged) == 1 else 'are'} damaged"
            )
        brokers.append(BrokerLogs(tuple(names), not damaged))
    return brokers, remarks
