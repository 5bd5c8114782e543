"""The audit of sessions: checks whether a log satisfies the guarantees of MQTT and foldmq.

``rules`` contains the table of all rules, ``single_event_rules`` the checks of an event against the
state of its session.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from projections.audit.expected_messages import packed_size
    from projections.audit.rules import RULES, UNEXPECTED, Rule, Violation
    from projections.audit.session_audit import SessionAudit
    from projections.audit.shared_subscription_audit import SharedAudit
    from projections.audit.shared_subscription_steps import ASSIGNED, SHARE, SharedStep
    from projections.audit.single_event_rules import is_clean_start
    from projections.audit.subscription_spans import (
        SUBSCRIPTION_EVENTS,
        HeldSubscription,
        SubscribedSessions,
        SubscriptionSpan,
        SubscriptionSpans,
    )
    from projections.audit.unfinished_deliveries import BUCKETS

__all__ = [
    "ASSIGNED",
    "BUCKETS",
    "RULES",
    "SHARE",
    "SUBSCRIPTION_EVENTS",
    "UNEXPECTED",
    "HeldSubscription",
    "Rule",
    "SessionAudit",
    "SharedAudit",
    "SharedStep",
    "SubscribedSessions",
    "SubscriptionSpan",
    "SubscriptionSpans",
    "Violation",
    "is_clean_start",
    "packed_size",
]

_MODULE_OF = {
    "is_clean_start": "single_event_rules",
    "packed_size": "expected_messages",
    "UNEXPECTED": "rules",
    "RULES": "rules",
    "Rule": "rules",
    "Violation": "rules",
    "SessionAudit": "session_audit",
    "SharedAudit": "shared_subscription_audit",
    "ASSIGNED": "shared_subscription_steps",
    "SHARE": "shared_subscription_steps",
    "SharedStep": "shared_subscription_steps",
    "SUBSCRIPTION_EVENTS": "subscription_spans",
    "HeldSubscription": "subscription_spans",
    "SubscribedSessions": "subscription_spans",
    "SubscriptionSpan": "subscription_spans",
    "SubscriptionSpans": "subscription_spans",
    "BUCKETS": "unfinished_deliveries",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Load the module of a public name at its first use."""
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
