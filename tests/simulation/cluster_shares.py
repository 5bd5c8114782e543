"""Members of a shared subscription in a cluster with several nodes and logs: random runs.

``python tests/simulation/cluster_shares.py --seeds 200`` runs many.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    _ROOT = Path(__file__).parents[2]
    sys.path[:0] = [str(_ROOT), str(_ROOT / "tests")]

from simulation.chaos import errors_of_the_broker, small_checkpoints
from simulation.loop import simulate
from simulation.node_faults import NodeFaults
from simulation.partition_shares import PartitionShares
from simulation.processes import ProcessLoop
from simulation.seeds import run_seeds

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Sequence

    from simulation.partitioned_nodes import LogWorld

_STRIKE = 0.1
"""Chance that something happens to a node in a step."""
LONGEST = 4000.0
"""Seconds of virtual time that a run may take."""


class ClusterShares(PartitionShares):
    """One random run."""

    def __init__(self, seed: int, errors: list[str]) -> None:
        self.nodes = NodeFaults(seed, self.note, LONGEST)
        super().__init__(seed, errors)

    def make_worlds(self, count: int, **options: Any) -> Sequence[LogWorld]:
        del count
        return self.nodes.make(self.faults, **options)

    async def start(self) -> None:
        await self.nodes.start()

    async def repair(self) -> None:
        self.nodes.repair()
        if self.chance.random() < _STRIKE:
            self.nodes.strike()

    async def mend(self) -> None:
        self.nodes.mend()

    async def run(self) -> Counter[str]:
        try:
            counts = await super().run()
        finally:
            await self.nodes.end()
        return counts + self.faults.counts


def run(seed: int) -> Counter[str]:
    """Run a seed; an error names it and the last actions."""
    with small_checkpoints(), errors_of_the_broker() as errors:
        chaos = ClusterShares(seed, errors)
        try:
            return simulate(chaos.run, ProcessLoop)
        except BaseException as error:
            error.add_note(f"seed {seed}: " + "; ".join(chaos.trace[-40:]))
            raise


if __name__ == "__main__":
    run_seeds(__doc__, run)
