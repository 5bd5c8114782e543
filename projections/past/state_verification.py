"""Comparison of a broker's state, and of its projections, with its log."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from eventstore.display import name
from eventstore.errors import NotFound
from eventstore.format.positions import Position
from eventstore.reading.log_source import LogSource
from eventstore.reading.progress import Progress, silent
from projections.log_proof import Doubt, proven_spans, unproven_end
from projections.past.comparison import (
    BROKER,
    MARK,
    PROJECTIONS,
    RETAINED,
    Check,
    Comparison,
    Difference,
    beyond,
    broker_checks,
    mark_checker,
    page_check,
    projection_checks,
)
from projections.past.divergence import Divergence, describe_message, find_divergences
from projections.past.live_state import LivePage, LiveState, LiveStateSource
from projections.past.stored_projections import ProjectionReader, StoredProjections

_LOOKED_AT = 1000
"""Number of differences whose origin is searched for."""


@dataclass(slots=True)
class VerificationOutcome:
    """The result of a comparison."""

    reported: LiveState | None = None
    """The answer of the broker; None: the broker was not asked."""
    stored: StoredProjections | None = None
    divergences: list[Divergence] = field(default_factory=list)
    more: int = 0
    """Number of differences that were only counted."""
    only: str | None = None
    """The one session that was compared."""
    proven: list[tuple[int, int]] = field(default_factory=list)
    """The times for which the result holds, Unix time in milliseconds."""
    doubts: list[Doubt] = field(default_factory=list)
    """What cannot be said about the log."""

    @property
    def damaged(self) -> list[int]:
        """Sequences of the messages of the projections that cannot be read."""
        return self.stored.damaged if self.stored is not None else []

    @property
    def equal(self) -> bool:
        """Whether there is no difference."""
        return not self.divergences and not self.more and not self.damaged

    @property
    def first(self) -> Position | None:
        """The first position at which anything diverges; None if none is known."""
        places = (divergence.trail.parts_at for divergence in self.divergences)
        return min((at for at in places if at is not None), default=None)


class StateVerification:
    """Compares the state of a broker, and its projections, with the log."""

    def __init__(
        self,
        source: LogSource,
        node: str,
        broker: LiveStateSource | None,
        only: str | None = None,
        progress: Progress = silent,
    ) -> None:
        """Compare with the log in ``source``.

        ``broker`` reports the state of the running broker; None: only the projections are
        compared. With ``only``, one session alone is compared.
        """
        self._source = source
        self._broker = broker
        self._progress = progress
        self._only = only
        self._reader = ProjectionReader(source, node, progress)
        self._node = node

    async def outcome(self) -> VerificationOutcome:
        """Ask the broker, read the projections, fold the log, and find the points of divergence.

        Raises NotFound if the only session to compare is unknown, CutMeanwhile, CutOff, CorruptLog,
        UnreadableEvent, Unsettled or LogUnavailable, and the errors of the broker's source.
        """
        outcome = VerificationOutcome(only=self._only)
        last, checks = 0, list[Check]()
        if self._broker is not None:
            outcome.reported, checks = await self._ask(self._broker)
            last = await self._broker.until_stored(outcome.reported.end)
        reader = self._reader
        stored = await (reader.all() if self._only is None else reader.one(self._only))
        outcome.stored = stored
        last = max(last, (await self._source.bounds())[1])
        comparison = Comparison(self._source, checks, self._only, self._progress)
        differences = await self._compare(comparison, stored, last)
        outcome.doubts = list(comparison.node.proof.doubts)
        if self._source.unproven is not None:
            outcome.doubts.append(unproven_end(self._source.unproven))
        if comparison.times_ms is not None:
            outcome.proven = proven_spans(*comparison.times_ms, outcome.doubts)
        if self._only is not None and not differences:
            self._check_known(outcome)
        outcome.divergences = await self._origins(differences[:_LOOKED_AT], last)
        outcome.more = max(0, len(differences) - _LOOKED_AT)
        return outcome

    async def _ask(self, broker: LiveStateSource) -> tuple[LiveState, list[Check]]:
        if self._only is None:
            live = await broker.all()
            return live, broker_checks(live)
        session = await broker.session(self._only)
        page = LivePage(session.bound, {self._only: session.digest}, {})
        live = LiveState(self._node, session.bound, [page], int(session.digest is not None))
        return live, [page_check(page)]

    async def _compare(
        self, comparison: Comparison, stored: StoredProjections, last: int
    ) -> list[Difference]:
        own = projection_checks(stored, comparison, last, self._only)
        comparison.add([Check(each.bound, each.look) for each in own])
        if stored.mark is not None:
            comparison.on_record = mark_checker(stored.mark)
        differences = await comparison.run(last)
        differences += [difference for check in own for difference in check.open.values()]
        too_far = beyond(stored, last)
        if too_far is not None:
            differences.append(too_far)
        return differences

    def _check_known(self, outcome: VerificationOutcome) -> None:
        """Raise NotFound if neither side knows the session."""
        here = outcome.reported is not None and outcome.reported.sessions
        if not here and (outcome.stored is None or not outcome.stored.sessions):
            raise NotFound(f"no session {name(self._only or '')}")

    async def _origins(self, differences: Iterable[Difference], last: int) -> list[Divergence]:
        divergences = [await self._divergence(difference) for difference in differences]
        bound = max(
            (
                divergence.bound
                for divergence in divergences
                if divergence.difference.where == BROKER
            ),
            default=0,
        )
        if self._broker is not None and bound:
            last = max(last, await self._broker.until_stored(bound))
        await find_divergences(self._source, divergences, last, self._progress)
        parted = [divergence for divergence in divergences if not divergence.settled]
        parted.sort(
            key=lambda divergence: (
                divergence.trail.parts_at is None,
                divergence.trail.parts_at or 0,
            )
        )
        return parted

    async def _divergence(self, difference: Difference) -> Divergence:
        """Return a difference with the state of the other side, if it is still available."""
        if difference.kind == MARK:
            divergence = Divergence(difference, difference.bound)
            divergence.whole.parts_at = difference.bound
            return divergence
        if difference.other is None:
            return Divergence(difference, difference.bound)
        if difference.where == PROJECTIONS:
            return await self._of_projections(difference)
        if self._broker is None:
            return Divergence(difference, difference.bound)
        if difference.kind == RETAINED:
            bound, message = await self._broker.retained(difference.name)
            shown = (
                None
                if message is None
                else describe_message(message["qos"], message["ref"], message["size"])
            )
            return Divergence(difference, bound, message=shown)
        session = await self._broker.session(difference.name)
        if session.state is None:
            return Divergence(difference, difference.bound)
        return Divergence(difference, session.bound, session.state, session.pending)

    async def _of_projections(self, difference: Difference) -> Divergence:
        if difference.kind == RETAINED:
            message = await self._reader.message(difference.name)
            if message is None:
                return Divergence(difference, difference.bound)
            shown = describe_message(message.qos, message.ref, len(message.payload))
            return Divergence(difference, difference.bound, message=shown)
        held = self._reader.projections.sessions.get(difference.name)
        if held is None:
            return Divergence(difference, difference.bound)
        version, state = await self._reader.session(difference.name)
        return Divergence(difference, difference.bound, state if version == held.version else None)
