"""Facts: what the scan of a log and the folds of an audit say, by key.

An audit scans each log once, in order, into facts; groups them by key (session, message, shared
subscription, log), in order; and folds each group: a fold yields further facts, among them the
violations. In one process or distributed by Spark, the folds are the same.

All kinds of facts share the columns; each uses some of them. Positions are packed, times are Unix
times in milliseconds.
"""

from __future__ import annotations

from typing import Final

NODE: Final = 0
"""About the log as a whole, for the driver: ``data`` is JSON, see ``chain_check.LogNote``."""
EVENTS: Final = 8
"""Events of a session (``data``, packed) from ``at`` on; ``payload`` where their fold needs it."""
SPANS: Final = 1
"""Events that begin or end subscriptions (``data``, packed), again; ``number`` 1: a snapshot."""
EFFECT: Final = 9
"""A message of ``session`` on ``topic``, published at ``ref``, took effect at ``at``.

``number`` is its QoS plus four times the part of that record in its turn, ``check`` a checksum of
its properties and payload, ``time_ms`` the time of its effect, ``size`` its ``packed_size``,
``expires`` the Unix time in seconds at which it expires, 0: never. At QoS 0 only replays count."""
SENT: Final = 2
"""A message published at ``ref`` with QoS 2; it may take effect elsewhere in the log.

``at`` is the position of this statement, ``size`` and ``expires`` are as for EFFECT; ``number`` 1:
it becomes retained then, ``digest`` is that of the retained message, empty if it clears a topic."""
RELEASED: Final = 3
"""The message of ``ref`` took effect at ``at``; the scan did not see its publication.

``session`` and ``number`` are as for EFFECT."""
RETAINED: Final = 10
"""The retained message of ``topic`` changed at ``at``: ``number`` is one of the four below, plus
four times the QoS of the message. ``expires`` is as for EFFECT; for EXPIRED_SO it is the time of
the record.

From there on the message is known by ``ref``, and has this ``digest``, empty if there is none.
``session`` is its publisher, empty if unknown; ``time_ms`` is the position where the record of its
turn begins."""
REPLAY: Final = 4
"""``session`` got the message of ``ref`` as a retained one, for the filter ``topic``, at ``at``.

``time_ms`` is the position where the record of its turn begins, ``expires`` the time of the
record in seconds; ``number`` 0: it was queued."""
CARRIED: Final = 5
"""The message of ``ref`` on ``topic`` was repeated at ``at`` because its record is cut off.

``session`` is its publisher, empty if unknown; the other columns are as for SENT and EFFECT."""
WILL: Final = 6
"""A will was armed at ``at``, or another log assigned a message to a shared subscription there.

``ref`` is the same position; ``topic`` and ``check`` are those of the message."""
GRANT: Final = 7
"""``session`` was granted the filter ``topic`` at ``at`` with QoS 1 or 2.

``number`` is that QoS, plus 4 with No Local; ``time_ms`` is the time of the record."""

CLAIMED_SESSION, CLAIMED_TOPIC = -4, -3
"""The state of a session, or of the retained message of a topic, is claimed before ``at``.

``before`` is the source of the claim, ``digest`` what it says, null: there is none."""
DUE: Final = -2
"""Messages that ``session`` must or may get (``data``), the first of them at ``at``: see
``expected_packs``."""
OWED: Final = 11
"""``session`` must get the retained message of ``ref``, for the filter ``topic`` granted at ``at``.

The kinds of facts of a session at one position are processed in the order of their numbers."""
VIOLATION: Final = 20
"""A violation of the rule ``topic``: ``digest`` is what is wrong, ``ref`` the message concerned, if
there is one."""
NEEDED: Final = 21
"""The messages ``data`` are needed when the log is cut at ``at``, by ``session`` or as retained
ones."""
CONNECTED: Final = 22
"""The session was connected from ``at`` on, from ``time_ms`` to ``expires``."""
SHARED: Final = 23
"""A step of a shared subscription, its name in ``session``: ``data`` contains the other fields of
a ``SharedStep``, serialized."""
READ: Final = 25
"""A step of a replay of ``session`` that ends at ``at``: ``topic`` is the filter of its messages,
``data`` a ``ReplayStep``, serialized."""
TOTALS: Final = 24
"""The ``AuditTotals`` of a task, serialized in ``data``."""

MANY: Final = (EVENTS, EFFECT, RETAINED)
"""Kinds with up to as many facts as the log has entries; the other kinds have fewer.

Their numbers are the highest: Spark skips cached batches by the range of the values in them."""
FEW: Final = (NODE, SPANS, SENT, RELEASED, REPLAY, CARRIED, WILL, GRANT)
"""The other kinds that the scan makes."""

SET, REPEATED_SO, CLEARED, EXPIRED_SO = 0, 1, 2, 3
"""Kinds of changes of a retained message: published, repeated by a checkpoint (then ``check`` is
its former position and ``before`` its digest there), removed by an operator, expired."""
