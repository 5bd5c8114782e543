"""The audit of sessions: their expected messages, and whether their events keep the guarantees."""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from spark.audit.sessions.expected_deliveries import (
        PublishedMessages,
        expected_deliveries_of,
        expected_of_few,
        few_subscription_spans,
        packs_of,
        position_of,
        published_messages,
        spans_of_facts,
        subscription_spans,
        topics_to_filters,
    )
    from spark.audit.sessions.expected_packs import EFFECT_COLUMNS, REQUIRED
    from spark.audit.sessions.session_audit_task import (
        COLUMNS,
        SessionPlan,
        audit_sessions,
        session_results,
    )
    from spark.audit.sessions.session_checker import (
        CLAIMED,
        EXPECTED,
        HAPPENED,
        OWED,
        session_marks,
    )
    from spark.audit.sessions.session_result_rows import (
        CONNECTED,
        NEEDED,
        OF_RESULTS,
        SHARED,
        TOTALS,
        VIOLATION,
        AuditTotals,
        bounded,
        quantile,
    )
    from spark.audit.sessions.shared_rules import audit_shared, shared_results
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "expected_deliveries": (
                "PublishedMessages expected_deliveries_of expected_of_few few_subscription_spans "
                "packs_of position_of published_messages spans_of_facts subscription_spans "
                "topics_to_filters"
            ),
            "expected_packs": "EFFECT_COLUMNS REQUIRED",
            "session_audit_task": "COLUMNS SessionPlan audit_sessions session_results",
            "session_checker": "CLAIMED EXPECTED HAPPENED OWED session_marks",
            "session_result_rows": (
                "AuditTotals CONNECTED NEEDED OF_RESULTS SHARED TOTALS VIOLATION bounded quantile"
            ),
            "shared_rules": "audit_shared shared_results",
        },
    )

__all__ = [
    "CLAIMED",
    "COLUMNS",
    "CONNECTED",
    "EFFECT_COLUMNS",
    "EXPECTED",
    "HAPPENED",
    "NEEDED",
    "OF_RESULTS",
    "OWED",
    "REQUIRED",
    "SHARED",
    "TOTALS",
    "VIOLATION",
    "AuditTotals",
    "PublishedMessages",
    "SessionPlan",
    "audit_sessions",
    "audit_shared",
    "bounded",
    "expected_deliveries_of",
    "expected_of_few",
    "few_subscription_spans",
    "packs_of",
    "position_of",
    "published_messages",
    "quantile",
    "session_marks",
    "session_results",
    "shared_results",
    "spans_of_facts",
    "subscription_spans",
    "topics_to_filters",
]
