"""Recovery, projections, retention, checkpoints, session expiry and attestation."""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from actors.maintenance.background_verify import verify_in_background
    from actors.maintenance.checkpoints import (
        StateEvent,
        repeat_messages,
        repeat_retained,
        repeat_session,
    )
    from actors.maintenance.cluster_hooks import ClusterHooks
    from actors.maintenance.limits_event import applied_limits
    from actors.maintenance.projector import Projector
    from actors.maintenance.recovery import (
        adopt,
        end_connections,
        rebuild_session,
        recover,
        software,
    )
    from actors.maintenance.retention import Retention
    from actors.maintenance.session_expiry import Expiries
    from actors.maintenance.state_digests import StateDigestService, subject_of
    from actors.maintenance.state_reader import FollowedState, StateReader
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "state_digests": "StateDigestService subject_of",
            "background_verify": "verify_in_background",
            "checkpoints": "StateEvent repeat_messages repeat_retained repeat_session",
            "session_expiry": "Expiries",
            "limits_event": "applied_limits",
            "cluster_hooks": "ClusterHooks",
            "projector": "Projector",
            "recovery": "adopt end_connections rebuild_session recover software",
            "retention": "Retention",
            "state_reader": "FollowedState StateReader",
        },
    )

__all__ = [
    "ClusterHooks",
    "Expiries",
    "FollowedState",
    "Projector",
    "Retention",
    "StateDigestService",
    "StateEvent",
    "StateReader",
    "adopt",
    "applied_limits",
    "end_connections",
    "rebuild_session",
    "recover",
    "repeat_messages",
    "repeat_retained",
    "repeat_session",
    "software",
    "subject_of",
    "verify_in_background",
]
