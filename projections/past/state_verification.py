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

    said: LiveState | None = None
    """The answer of the broker; None: the broker was not asked."""
    found: StoredProjections | None = None
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
        return self.found.damaged if self.found is not None else []

    @property
    def equal(self) -> bool:
        """Whether there is no difference."""
        return not self.divergences and not self.more and not self.damaged

    @property
    def first(self) -> Position | None:
        """The first position at which anything diverges; None if none is known."""
        known = (one.trail.parts_at for one in self.divergences)
        return min((at for at in known if at is not None), default=None)


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
            outcome.said, checks = await self._ask(self._broker)
            last = await self._broker.until_stored(outcome.said.end)
        reader = self._reader
        found = await (reader.all() if self._only is None else reader.one(self._only))
        outcome.found = found
        last = max(last, (await self._source.bounds())[1])
        comparison = Comparison(self._source, checks, self._only, self._progress)
        differences = await self._compare(comparison, found, last)
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
            said = await broker.all()
            return said, broker_checks(said)
        told = await broker.session(self._only)
        page = LivePage(told.bound, {self._only: told.digest}, {})
        said = LiveState(self._node, told.bound, [page], int(told.digest is not None))
        return said, [page_check(page)]

    async def _compare(
        self, comparison: Comparison, found: StoredProjections, last: int
    ) -> list[Difference]:
        own = projection_checks(found, comparison, last, self._only)
        comparison.add([Check(each.bound, each.look) for each in own])
        if found.mark is not None:
            comparison.on_record = mark_checker(found.mark)
        differences = await comparison.run(last)
        differences += [one for check in own for one in check.open.values()]
        too_far = beyond(found, last)
        if too_far is not None:
            differences.append(too_far)
        return differences

    def _check_known(self, outcome: VerificationOutcome) -> None:
        """Raise NotFound if neither side knows the session."""
        here = outcome.said is not None and outcome.said.sessions
        if not here and (outcome.found is None or not outcome.found.sessions):
            raise NotFound(f"no session {name(self._only or '')}")

    async def _origins(self, differences: Iterable[Difference], last: int) -> list[Divergence]:
        divergences = [await self._divergence(one) for one in differences]
        bound = max((one.bound for one in divergences if one.difference.where == BROKER), default=0)
        if self._broker is not None and bound:
            last = max(last, await self._broker.until_stored(bound))
        await find_divergences(self._source, divergences, last, self._progress)
        found = [one for one in divergences if not one.settled]
        found.sort(key=lambda one: (one.trail.parts_at is None, one.trail.parts_at or 0))
        return found

    async def _divergence(self, one: Difference) -> Divergence:
        """Return a difference with the state of the other side, if it is still available."""
        if one.kind == MARK:
            divergence = Divergence(one, one.bound)
            divergence.whole.parts_at = one.bound
            return divergence
        if one.other is None:
            return Divergence(one, one.bound)
        if one.where == PROJECTIONS:
            return await self._of_projections(one)
        if self._broker is None:
            return Divergence(one, one.bound)
        if one.kind == RETAINED:
            bound, said = await self._broker.retained(one.name)
            shown = (
                None if said is None else describe_message(said["qos"], said["ref"], said["size"])
            )
            return Divergence(one, bound, message=shown)
        told = await self._broker.session(one.name)
        if told.state is None:
            return Divergence(one, one.bound)
        return Divergence(one, told.bound, told.state, told.pending)

    async def _of_projections(self, one: Difference) -> Divergence:
        if one.kind == RETAINED:
            found = await self._reader.message(one.name)
            if found is None:
                return Divergence(one, one.bound)
            shown = describe_message(found.qos, found.ref, len(found.payload))
            return Divergence(one, one.bound, message=shown)
        held = self._reader.found.sessions.get(one.name)
        if held is None:
            return Divergence(one, one.bound)
        version, state = await self._reader.session(one.name)
        return Divergence(one, one.bound, state if version == held.version else None)
