"""The rules of the audit, and the checks that need more than one event and a session's state.

These checks concern drops, ended sessions, connections, wills, waiting messages and checkpoints.
"""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from projections.audit.rules.checkpoint_snapshot_rule import CheckpointSnapshotAudit
    from projections.audit.rules.drop_rules import UNKNOWN_LIMITS, DropAudit
    from projections.audit.rules.home_rule import LogPlace, has_home, wrong_home
    from projections.audit.rules.log_outline import BrokerRun, Limits, LogOutline, OutlineBuilder
    from projections.audit.rules.ownership import OwnershipAudit
    from projections.audit.rules.queue_progress import QueueProgress
    from projections.audit.rules.rule_coverage import EventCases
    from projections.audit.rules.rule_table import (
        OF_SEVERAL_LOGS,
        RULES,
        UNEXPECTED,
        Rule,
        Violation,
    )
    from projections.audit.rules.session_ends import SessionEnds
    from projections.audit.rules.will_rules import WillAudit, with_content
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "rule_coverage": "EventCases",
            "drop_rules": "UNKNOWN_LIMITS DropAudit",
            "home_rule": "LogPlace has_home wrong_home",
            "log_outline": "BrokerRun Limits LogOutline OutlineBuilder",
            "ownership": "OwnershipAudit",
            "queue_progress": "QueueProgress",
            "checkpoint_snapshot_rule": "CheckpointSnapshotAudit",
            "rule_table": "OF_SEVERAL_LOGS RULES UNEXPECTED Rule Violation",
            "session_ends": "SessionEnds",
            "will_rules": "WillAudit with_content",
        },
    )

__all__ = [
    "OF_SEVERAL_LOGS",
    "RULES",
    "UNEXPECTED",
    "UNKNOWN_LIMITS",
    "BrokerRun",
    "CheckpointSnapshotAudit",
    "DropAudit",
    "EventCases",
    "Limits",
    "LogOutline",
    "LogPlace",
    "OutlineBuilder",
    "OwnershipAudit",
    "QueueProgress",
    "Rule",
    "SessionEnds",
    "Violation",
    "WillAudit",
    "has_home",
    "with_content",
    "wrong_home",
]
