"""Comparison of states: of a log with a broker or its projections, and of two points of one log.

``Comparison`` folds a log once and runs checks at their positions, ``find_divergences`` folds it
a second time to find where each difference began.
"""

from projections.comparison.changed_states import ChangedSession, ChangedStates
from projections.comparison.comparison import (
    BROKER,
    MARK,
    PROJECTIONS,
    RETAINED,
    SESSION,
    Check,
    Comparison,
    Difference,
    PageCheck,
    beyond,
    broker_checks,
    mark_checker,
    projection_checks,
)
from projections.comparison.divergence import (
    Divergence,
    FieldDifference,
    FirstDifference,
    describe_message,
    find_divergences,
)
from projections.comparison.live_state import (
    LivePage,
    LiveSession,
    LiveState,
    LiveStateSource,
    digest_number,
)
from projections.comparison.state_differences import (
    StatesBetween,
    retained_changes,
    sessions_changed,
    states_between,
)
from projections.comparison.state_facts import (
    Granted,
    SessionFacts,
    StateFacts,
    WillFacts,
    session_facts,
    state_facts,
)
from projections.comparison.state_verification import StateVerification, VerificationOutcome
from projections.comparison.stored_projections import (
    ProjectionReader,
    StoredItem,
    StoredProjections,
    Unsettled,
)

__all__ = [
    "BROKER",
    "MARK",
    "PROJECTIONS",
    "RETAINED",
    "SESSION",
    "ChangedSession",
    "ChangedStates",
    "Check",
    "Comparison",
    "Difference",
    "Divergence",
    "FieldDifference",
    "FirstDifference",
    "Granted",
    "LivePage",
    "LiveSession",
    "LiveState",
    "LiveStateSource",
    "PageCheck",
    "ProjectionReader",
    "SessionFacts",
    "StateFacts",
    "StateVerification",
    "StatesBetween",
    "StoredItem",
    "StoredProjections",
    "Unsettled",
    "VerificationOutcome",
    "WillFacts",
    "beyond",
    "broker_checks",
    "describe_message",
    "digest_number",
    "find_divergences",
    "mark_checker",
    "projection_checks",
    "retained_changes",
    "session_facts",
    "sessions_changed",
    "state_facts",
    "states_between",
]
