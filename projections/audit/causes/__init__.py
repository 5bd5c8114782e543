"""Whether the reasons that the log gives are true: of drops, of ended sessions, of wills."""

from typing import TYPE_CHECKING

from protocol.front_door import front_door

if TYPE_CHECKING:
    from projections.audit.causes.case_counts import count_cases
    from projections.audit.causes.drop_rules import UNKNOWN_LIMITS, DropAudit
    from projections.audit.causes.log_outline import BrokerRun, Limits, LogOutline, OutlineBuilder
    from projections.audit.causes.ownership import OwnershipAudit
    from projections.audit.causes.queue_progress import QueueProgress
    from projections.audit.causes.repetitions import RepetitionAudit
    from projections.audit.causes.session_ends import SessionEnds
    from projections.audit.causes.will_rules import WillAudit, with_content
else:
    __getattr__ = front_door(
        __name__,
        {
            "case_counts": "count_cases",
            "drop_rules": "UNKNOWN_LIMITS DropAudit",
            "log_outline": "BrokerRun Limits LogOutline OutlineBuilder",
            "ownership": "OwnershipAudit",
            "queue_progress": "QueueProgress",
            "repetitions": "RepetitionAudit",
            "session_ends": "SessionEnds",
            "will_rules": "WillAudit with_content",
        },
    )

__all__ = [
    "UNKNOWN_LIMITS",
    "BrokerRun",
    "DropAudit",
    "Limits",
    "LogOutline",
    "OutlineBuilder",
    "OwnershipAudit",
    "QueueProgress",
    "RepetitionAudit",
    "SessionEnds",
    "WillAudit",
    "count_cases",
    "with_content",
]
