"""The state according to running brokers or stored projections, for an audit to compare."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from cli.common import text
from cli.common.progress_bar import progress
from cli.logs.broker_client import NoLiveBroker, require_stored
from cli.logs.state_client import NoBroker, StateClient
from cli.spark.log_location import Found
from eventstore.errors import CorruptLog
from eventstore.format.positions import Position, position
from eventstore.nats.discovery import LOG_STREAM_PREFIX
from eventstore.reading.log_source import LogSource
from projections.audit.audit_outcome import ALL_CLAIM as ALL
from projections.audit.audit_outcome import RETAINED_CLAIM as RETAINED
from projections.audit.audit_outcome import SESSION_CLAIM as SESSION
from projections.audit.audit_outcome import StateClaim
from projections.log_proof import Doubt, unproven_end
from projections.past.live_state import LiveState
from projections.past.stored_projections import (
    ProjectionReader,
    StoredItem,
    StoredProjections,
)

BROKER, PROJECTIONS = "broker", "projections"
_DIGITS = 16


@dataclass(slots=True)
class ClaimedStates:
    """The claimed states."""

    rows: list[StateClaim] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Parts that cannot be compared, as text."""
    ends: dict[str, Doubt] = field(default_factory=dict)
    """The doubts about the ends of logs that no broker has recorded yet, by the node that wrote."""
    owners: dict[str, str] = field(default_factory=dict)
    """The nodes of logs that were restored as those and not continued, by the node that wrote."""


GatherClaims = Callable[[Found], Awaitable[ClaimedStates]]


async def no_claims(_found: Found) -> ClaimedStates:
    """Return no claims."""
    return ClaimedStates()


def with_open_ends(gather: GatherClaims) -> GatherClaims:
    """Return the same, with the doubts about logs whose ends are not proven and not continued.

    It raises StoreGone for a log whose files are not where its broker stored them.
    """

    async def gather_all(place: Found) -> ClaimedStates:
        claims = await gather(place)
        for log in place.logs:
            await require_stored(log)
            if log.unproven is not None:
                node = owner = log.stream.removeprefix(LOG_STREAM_PREFIX)
                with suppress(CorruptLog):
                    node = await log.node()
                claims.ends[node] = unproven_end(log.unproven)
                if owner != node and log.unproven.reason == "restored":
                    claims.owners[node] = owner
        return claims

    return gather_all


async def claims_of_brokers(place: Found) -> ClaimedStates:
    """Return the state of the brokers of all logs once the logs contain it.

    Raises NoLiveBroker, or Unanswered.
    """
    claims = ClaimedStates()
    for log in place.logs:
        node = await log.node()
        if not log.live:
            raise _no_broker(node, f"no broker is running on {log.where}")
        state = await _of_broker(log, node)
        claims.rows += _claims_in(node, state)
    return claims


async def claims_of_projections(place: Found) -> ClaimedStates:
    """Return the stored projections of all logs; raises Unsettled, or LogUnavailable."""
    claims = ClaimedStates()
    for log in place.logs:
        node = await log.node()
        stored = await ProjectionReader(log, node, progress).all()
        _, last_sequence = await log.bounds()
        claims.rows += _stored(node, stored, position(last_sequence + 1, 0))
        claims.notes += _unusable(node, stored)
    return claims


async def _of_broker(log: LogSource, node: str) -> LiveState:
    broker = StateClient(log, node)
    try:
        state = await broker.all()
        await broker.until_stored(state.end)
    except NoBroker as error:
        raise _no_broker(error.node, error.why) from None
    return state


def _no_broker(node: str, why: str) -> NoLiveBroker:
    return NoLiveBroker(
        f"no broker answers for node {text.name(node)} ({why}): start it, or give --no-broker to "
        "audit only the log"
    )


def _claims_in(node: str, state: LiveState) -> Iterator[StateClaim]:
    yield StateClaim(BROKER, node, ALL, "", state.begun, None)
    for page in state.pages:
        for kind, digests in ((SESSION, page.sessions), (RETAINED, page.retained)):
            for name, digest in digests.items():
                yield StateClaim(BROKER, node, kind, name, page.bound, _hex(digest))


def _stored(node: str, stored: StoredProjections, end: Position) -> Iterator[StateClaim]:
    """Yield stored entries as of their mark, newer ones as of their own version."""
    mark = position(stored.mark.sequence + 1, 0) if stored.mark is not None else 0
    if mark and not stored.torn and not stored.damaged:
        yield StateClaim(PROJECTIONS, node, ALL, "", min(mark, end), None)
    for name, held in stored.sessions.items():
        yield StateClaim(
            PROJECTIONS, node, SESSION, name, _bound(mark, held, end), _hex(held.digest)
        )
    for name, held in stored.retained.items():
        # The position of publication, not of the effect.
        bound = min(mark or held.version + 1, end)
        yield StateClaim(PROJECTIONS, node, RETAINED, name, bound, _hex(held.digest))


def _bound(mark: Position, held: StoredItem, end: Position) -> Position:
    return min(max(mark, held.version), end)


def _unusable(node: str, stored: StoredProjections) -> Iterator[str]:
    of = f"the projections of node {text.name(node)}"
    if stored.useless is not None:
        yield f"a start would ignore {of} and read the whole log: {stored.useless}"
    if stored.damaged:
        numbers = text.several(map(str, stored.damaged), len(stored.damaged))
        yield f"{of}: messages {numbers} cannot be read"
    if stored.torn:
        yield f"{of}: {text.count_of(len(stored.torn), 'session')} stored in part"


def _hex(digest: int | None) -> str | None:
    return None if digest is None else f"{digest:0{_DIGITS}x}"
