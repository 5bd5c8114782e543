"""Random worlds of several processes and nodes with replays: kills, cuts, takeovers.

A failure names its seed: ``python tests/simulation/replaying_clients.py --first SEED --seeds 1``
runs it again.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

import pytest

from actors.replay import log_reader
from actors.replay.log_cursor import LogCursor
from actors.replay.selection import Step
from eventstore.format.events import MessagePublished
from eventstore.format.positions import position
from eventstore.format.records import Record
from eventstore.reading.publications import PublicationItem, publications_in, publications_of
from simulation.chaos import run_seed
from simulation.cluster_chaos import ClusterChaos
from simulation.processes import ProcessLoop
from simulation.replaying_clients import Replaying, run


class ReplayingCluster(Replaying, ClusterChaos):
    """The same in a cluster: leaders are replaced."""


@cache
def counts(seed: int) -> Counter[str]:
    return run(seed)


def marked(seeds: range) -> list[object]:
    """The first runs are made at every save, the last ones by make drills."""
    last = [pytest.mark.slow, pytest.mark.long]
    return [
        pytest.param(seed, marks=last[: (number > 1) + (number > 4)])
        for number, seed in enumerate(seeds)
    ]


@pytest.mark.parametrize("seed", marked(range(1, 13)))
def test_replays_of_several_processes_are_what_the_logs_have(seed: int) -> None:
    assert counts(seed)["replayed"]


# Replays that are wrong.

Patch = pytest.MonkeyPatch
_MAX_SEEDS = 12
"""Runs within which each mutant is caught."""


def skips_a_record_at_the_seam(patch: Patch) -> None:
    """The first messages that are read after everything was read are lost."""
    look_ahead = LogCursor.look_ahead
    done: list[LogCursor] = []

    def mutant(self: LogCursor) -> None:
        look_ahead(self)
        if self.was_live and self.ahead and self.ahead[0].publications and self not in done:
            done.append(self)
            self.ahead[0] = self.ahead[0]._replace(publications=())

    patch.setattr(LogCursor, "look_ahead", mutant)


def repeats_a_record_at_the_seam(patch: Patch) -> None:
    """The last record is read again when everything was read."""
    count = LogCursor.count

    def mutant(self: LogCursor, step: Step) -> None:
        count(self, step)
        if step.sent and self.is_live and not self.was_live:
            self.cursor = position(self.next_sequence - 1, 0) - 1

    patch.setattr(LogCursor, "count", mutant)


def ignores_a_cut(patch: Patch) -> None:
    """The cursor goes on behind a part that was removed unread, and nothing is told."""

    def mutant(self: LogCursor, first: int) -> None:
        self.cursor = max(self.cursor or 0, position(first, 0) - 1)
        self.wake()

    patch.setattr(LogCursor, "on_cut", mutant)


def reads_copies(patch: Patch) -> None:
    """A message that was taken over from another log comes once more."""

    def mutant(record: Record, wanted: None = None) -> Iterator[PublicationItem]:
        yield from publications_in(record, wanted)
        base = position(record.sequence, 0)
        for index, event in record.events():
            if isinstance(event, MessagePublished) and event.origins:
                plain = replace(event, session="copied", qos=min(event.qos, 1))
                yield from publications_of(record, plain, base + index)

    patch.setattr(log_reader, "publications_in", mutant)


MUTANTS: list[Callable[[Patch], None]] = [
    skips_a_record_at_the_seam,
    repeats_a_record_at_the_seam,
    ignores_a_cut,
    reads_copies,
]


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_replay_that_is_wrong_is_found(mutant: Callable[[Patch], None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        mutant(patch)
        for seed in range(1, _MAX_SEEDS + 1):
            try:
                run(seed)
            except AssertionError:
                return
    pytest.fail(f"{_MAX_SEEDS} runs found nothing wrong with {mutant.__name__}")


@pytest.mark.parametrize("seed", marked(range(100, 108)))
def test_replays_in_a_cluster_are_what_the_logs_have(seed: int) -> None:
    assert run_seed(ReplayingCluster, seed, ProcessLoop)["replayed"]
