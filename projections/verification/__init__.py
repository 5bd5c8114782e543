"""Checks whether a log is intact: its records, events, checkpoints, and messages of other logs."""

from projections.verification.checkpoint_check import CheckpointCheck
from projections.verification.event_checks import event_problem
from projections.verification.exchange_audit import ExchangeAudit, FollowedEnd, audit_exchange
from projections.verification.log_verifier import LogVerifier, verify_log

__all__ = [
    "CheckpointCheck",
    "ExchangeAudit",
    "FollowedEnd",
    "LogVerifier",
    "audit_exchange",
    "event_problem",
    "verify_log",
]
