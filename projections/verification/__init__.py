"""Checks whether a log is intact: its records, its events, and its checkpoints."""

from projections.verification.checkpoint_check import CheckpointCheck
from projections.verification.event_checks import event_problem
from projections.verification.log_verifier import LogVerifier, verify_log

__all__ = ["CheckpointCheck", "LogVerifier", "event_problem", "verify_log"]
