"""The facts of an audit: narrow rows made from the records of a log; and the audit's outcome."""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from spark.audit.facts.audit_outcome import (
        ALL_CLAIM,
        BROKER,
        MAX_VIOLATIONS,
        PROJECTIONS,
        RETAINED_CLAIM,
        SESSION_CLAIM,
        ClaimsCompared,
        DropCount,
        LatencyHistogram,
        NodeSummary,
        Outcome,
        RatePoint,
        RuleResult,
        SlowSession,
        StateClaim,
    )
    from spark.audit.facts.chain_check import (
        COUNTS,
        DROPS,
        FILTERS,
        RATES,
        SHARED_THERE,
        LogNote,
    )
    from spark.audit.facts.checkpoint_lookup import (
        cuts_behind,
        cuts_within,
        next_checkpoint,
        with_marks,
    )
    from spark.audit.facts.event_codec import Packed, unpack_events
    from spark.audit.facts.fact_scan import reduce_collections
    from spark.audit.facts.fact_schema import (
        CARRIED,
        CLEARED,
        EFFECT,
        EVENTS,
        EXPIRED_SO,
        FEW,
        GRANT,
        MANY,
        NODE,
        RELEASED,
        REPEATED_SO,
        REPLAY,
        RETAINED,
        SENT,
        SET,
        SPANS,
        WILL,
    )
    from spark.audit.facts.fact_source import facts_of, read_facts, whole_options
    from spark.audit.facts.fact_tables import FactTables
    from spark.audit.facts.histogram import merge_rates
    from spark.audit.facts.log_summary import BEYOND_ALL, LogSummaries, LogSummary, summarize_logs
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "chain_check": "COUNTS DROPS FILTERS LogNote RATES SHARED_THERE",
            "event_codec": "Packed unpack_events",
            "fact_scan": "reduce_collections",
            "fact_schema": (
                "CARRIED CLEARED EFFECT EVENTS EXPIRED_SO FEW GRANT MANY NODE RELEASED REPEATED_SO "
                "REPLAY RETAINED SENT SET SPANS WILL"
            ),
            "fact_source": "facts_of read_facts whole_options",
            "fact_tables": "FactTables",
            "histogram": "merge_rates",
            "log_summary": "BEYOND_ALL LogSummaries LogSummary summarize_logs",
            "checkpoint_lookup": "cuts_behind cuts_within next_checkpoint with_marks",
            "audit_outcome": (
                "ALL_CLAIM BROKER StateClaim ClaimsCompared DropCount LatencyHistogram "
                "MAX_VIOLATIONS NodeSummary Outcome PROJECTIONS RETAINED_CLAIM "
                "RatePoint RuleResult SESSION_CLAIM SlowSession"
            ),
        },
    )

__all__ = [
    "ALL_CLAIM",
    "BEYOND_ALL",
    "BROKER",
    "CARRIED",
    "CLEARED",
    "COUNTS",
    "DROPS",
    "EFFECT",
    "EVENTS",
    "EXPIRED_SO",
    "FEW",
    "FILTERS",
    "GRANT",
    "MANY",
    "MAX_VIOLATIONS",
    "NODE",
    "PROJECTIONS",
    "RATES",
    "RELEASED",
    "REPEATED_SO",
    "REPLAY",
    "RETAINED",
    "RETAINED_CLAIM",
    "SENT",
    "SESSION_CLAIM",
    "SET",
    "SHARED_THERE",
    "SPANS",
    "WILL",
    "ClaimsCompared",
    "DropCount",
    "FactTables",
    "LatencyHistogram",
    "LogNote",
    "LogSummaries",
    "LogSummary",
    "NodeSummary",
    "Outcome",
    "Packed",
    "RatePoint",
    "RuleResult",
    "SlowSession",
    "StateClaim",
    "cuts_behind",
    "cuts_within",
    "facts_of",
    "merge_rates",
    "next_checkpoint",
    "read_facts",
    "reduce_collections",
    "summarize_logs",
    "unpack_events",
    "whole_options",
    "with_marks",
]
