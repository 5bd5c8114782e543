"""One random run of several nodes that lead several logs; a seed decides everything.

``python tests/simulation/cluster_chaos.py --seeds 200`` runs many.
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
from simulation.partition_chaos import PartitionChaos
from simulation.processes import ProcessLoop
from simulation.seeds import run_seeds

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Sequence

    from simulation.devices import Device
    from simulation.partitioned_nodes import LogWorld

LONGEST = 4000.0
"""Seconds of virtual time that a run may take."""


class ClusterChaos(PartitionChaos):
    """One random run."""

    answer = 4.0

    def __init__(self, seed: int, errors: list[str]) -> None:
        self.nodes = NodeFaults(seed, self.note, LONGEST)
        super().__init__(seed, errors)
        self.actions[self.crash] = sum(self.nodes.actions.values())

    def make_worlds(self, count: int, **options: Any) -> Sequence[LogWorld]:
        del count
        return self.nodes.make(self.faults, **options)

    def crash(self, _device: Device) -> None:
        """Something happens to a node."""
        self.nodes.strike()

    async def start(self) -> None:
        await self.nodes.start()

    async def repair(self) -> None:
        self.nodes.repair()

    async def mend(self) -> None:
        self.nodes.mend()

    async def _check(self) -> None:
        await super()._check()
        for world in self.worlds:
            await world.compare_followers()

    async def run(self) -> Counter[str]:
        try:
            counts = await super().run()
        finally:
            await self.nodes.end()
        return counts + self.faults.counts


def run(seed: int) -> Counter[str]:
    """Run a seed; an error names it and the last actions."""
    with small_checkpoints(), errors_of_the_broker() as errors:
        chaos = ClusterChaos(seed, errors)
        try:
            return simulate(chaos.run, ProcessLoop)
        except BaseException as error:
            error.add_note(f"seed {seed}: " + "; ".join(chaos.trace[-40:]))
            raise


if __name__ == "__main__":
    run_seeds(__doc__, run)
