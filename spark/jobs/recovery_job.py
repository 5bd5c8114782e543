"""Checks from the log that a restarted broker has the correct state.

Everything that was acknowledged or in flight is in the log before the last ``BrokerStarted``. The
log from there on must continue it: connections end and their wills are published once, sessions are
resumed in their former state, packets are sent again under their old identifiers. These are rules
of the audit. With claims of the running broker its memory is compared as well, both ways.
"""

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from projections.audit.audit_outcome import (
    BROKER,
    ClaimsCompared,
    NodeRecovery,
    Outcome,
    StateClaim,
)
from projections.audit.rule_table import Rule, Violation
from spark.jobs.pipeline import audit
from spark.jobs.state_start import state_starts
from spark.runtime.marked_errors import BadOption
from spark.tables.log import Log
from spark.tables.node_names import check_claimed_nodes

RECOVERY: Final = "recovery"
"""The rule for all duties of a restarted broker towards a session."""
_DUTIES: Final = frozenset(
    {
        Rule.SESSION, Rule.OWNERSHIP, Rule.WILL, Rule.ORDER, Rule.ACKNOWLEDGEMENT, Rule.QUEUE,
        Rule.PACKET_ID_REUSE, Rule.NO_SUBSCRIPTION, Rule.DELIVERED_TWICE, Rule.DROP,
    }
)  # fmt: skip
"""The rules about what a session continues, and how."""
_OF_LOGS: Final = frozenset({Rule.CHAIN, Rule.TURN, Rule.EVENT, Rule.STATE})
"""Those about how a log goes on, and that of claims."""
_REPORTED: Final[Mapping[str, str]] = {
    **dict.fromkeys(_DUTIES, RECOVERY), **{rule: str(rule) for rule in _OF_LOGS}
}  # fmt: skip
"""Rules of the audit -> the rules that the result names."""
_NOTES: Final = re.compile(" claims about | given up, ")
"""What the notes are about that limit the result."""


@dataclass(frozen=True, slots=True)
class RecoveryOutcome:
    """The result of a recovery check."""

    nodes: tuple[NodeRecovery, ...]
    violations: tuple[Violation, ...]
    """At most ``MAX_VIOLATIONS`` of each rule, by node and position."""
    counts: Mapping[str, int]
    """Rule -> number of violations."""
    compared: tuple[ClaimsCompared, ...]
    """The compared claims of the broker; empty if it was not queried."""
    seconds: float
    notes: tuple[str, ...] = ()

    @property
    def kept(self) -> bool:
        """Whether there are no violations."""
        return not any(self.counts.values())


def recovery_check(
    log: Log,
    claims: Sequence[StateClaim] = (),
    *,
    tell: Callable[[str], object] = lambda _doing: None,
) -> RecoveryOutcome:
    """Check the last start in each log; return the recovered state, and the violations.

    ``claims`` are those of the running brokers (``where`` is ``broker``). ``tell`` is called with
    the next step, in a few words. The log is read up to its current end. Raises the errors of
    reading a log (``spark.runtime.marked_errors.find_error``), CutOff for a log whose state is not
    known yet, and BadOption for claims about nodes whose logs are not read.
    """
    if any(claim.where != BROKER for claim in claims):
        raise BadOption("a recovery is checked against brokers, not against projections")
    began = time.monotonic()
    pinned = log.pinned()
    check_claimed_nodes({claim.node for claim in claims}, pinned.bounds())
    state_starts(pinned)
    audited = audit(pinned, claims, cluster=False, recovery=True, progress=tell)
    violations, counts = _since_starts(audited)
    return RecoveryOutcome(
        audited.recoveries,
        tuple(violations),
        counts,
        audited.compared,
        time.monotonic() - began,
        tuple(note for note in audited.notes if _NOTES.search(note)),
    )


def _since_starts(audited: Outcome) -> tuple[list[Violation], Counter[str]]:
    """Return what is wrong since the last start in each log; and the numbers."""
    violations = [
        violation._replace(rule=_REPORTED[violation.rule])
        for violation in audited.violations
        if violation.rule in _REPORTED
    ]
    counts = Counter[str]()
    for rule in audited.rules:
        if rule.violations and rule.rule in _REPORTED:
            counts[_REPORTED[rule.rule]] += rule.violations
    violations.sort(key=lambda entry: (entry.node, entry.at, entry.session or ""))
    return violations, counts
