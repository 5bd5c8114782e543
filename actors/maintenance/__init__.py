"""Recovery, projections, retention, checkpoints, session expiry and attestation."""

from typing import TYPE_CHECKING

from protocol.front_door import front_door

if TYPE_CHECKING:
    from actors.maintenance.attestation import Attestor, subject_of
    from actors.maintenance.background_verify import verify_in_background
    from actors.maintenance.expiry import Expiries
    from actors.maintenance.leading import LeadingBroker
    from actors.maintenance.limit_record import applied_limits
    from actors.maintenance.projector import Projector
    from actors.maintenance.recovery import adopt, rebuild_session, recover, software
    from actors.maintenance.retention import Retention
    from actors.maintenance.state_reader import ReadState, StateReader
else:
    __getattr__ = front_door(
        __name__,
        {
            "attestation": "Attestor subject_of",
            "background_verify": "verify_in_background",
            "expiry": "Expiries",
            "limit_record": "applied_limits",
            "leading": "LeadingBroker",
            "projector": "Projector",
            "recovery": "adopt rebuild_session recover software",
            "retention": "Retention",
            "state_reader": "ReadState StateReader",
        },
    )

__all__ = [
    "Attestor",
    "Expiries",
    "LeadingBroker",
    "Projector",
    "ReadState",
    "Retention",
    "StateReader",
    "adopt",
    "applied_limits",
    "rebuild_session",
    "recover",
    "software",
    "subject_of",
    "verify_in_background",
]
