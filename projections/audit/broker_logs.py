"""Finds the logs of brokers that have several among those audited, and what lies between them."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from eventstore.partitions import partition_names, split_log_name
from projections.audit.audit_outcome import MAX_VIOLATIONS
from projections.audit.exchange_audit import FollowedEnd
from projections.audit.log_summary import BEYOND_ALL, LogSummary
from projections.audit.rule_table import LogPlace, Violation


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
            parts = split_log_name(name)
            if parts is not None:
                (there if name == node else followed)[parts[0]].add(parts[1])
    brokers, remarks = [], []
    for base, numbers in sorted(followed.items()):
        names = partition_names(base, max(numbers | there[base]) + 1)
        missing = [name for name in names if name not in logs]
        if missing:
            present = ", ".join(name for name in names if name in logs)
            remarks.append(
                f"{present}: what lies between the logs is not audited, because "
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


@dataclass(slots=True)
class ComparedLog:
    """The result of comparing one log with the others of its broker."""

    log: str
    due: int = 0
    """Messages that the other logs owed it."""
    compared: int = 0
    """Messages that it took, compared with those of the other logs."""
    ends: list[FollowedEnd] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)
    """The first ones of each rule."""
    counts: Counter[str] = field(default_factory=Counter)
    """The number of violations of each rule."""

    def add(self, violation: Violation) -> None:
        """Add a violation."""
        self.counts[violation.rule] += 1
        if self.counts[violation.rule] <= MAX_VIOLATIONS:
            self.violations.append(violation)

    def remarks(self) -> Iterator[str]:
        """Yield what is still on its way to the log."""
        for end in self.ends:
            if end.pending:
                many = "message is" if end.pending == 1 else "messages are"
                yield (
                    f"node {self.log}: {end.pending:,} {many} still to be taken from {end.log}, "
                    f"of which it has taken {end.through:,} of {end.last:,} records"
                )
