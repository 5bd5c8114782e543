"""Records the limits and permissions in force, so that an audit can judge drops."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventstore.format.node_events import LimitsApplied

if TYPE_CHECKING:
    from actors.access.rules import Permissions
    from actors.limits.broker_options import BrokerOptions


def applied_limits(options: BrokerOptions, permissions: Permissions) -> LimitsApplied:
    """Return the event that records these options and permissions."""
    bounds = options.bounds
    return LimitsApplied(
        {
            "max_queued_messages": options.max_queued_messages,
            "max_queued_bytes": options.max_queued_bytes,
            "max_ack_pending": options.max_ack_pending,
            "max_outbound_bytes": options.max_outbound_bytes,
            "session_expiry": options.session_expiry,
            "slow_reader_time": bounds.slow_reader_time,
            "max_topic_levels": bounds.max_topic_levels,
            "check_payload_format": options.check_payload_format,
        },
        permissions=permissions.digest,
        users=options.users_digest,
        elsewhere=options.users_elsewhere,
    )
