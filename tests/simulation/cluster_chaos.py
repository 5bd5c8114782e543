"""One random run of several nodes that lead several logs; a seed decides everything.

``python tests/simulation/cluster_chaos.py --seeds 200`` runs many.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":
    _ROOT = Path(__file__).parents[2]
    sys.path[:0] = [str(_ROOT), str(_ROOT / "tests")]

from collections import Counter

from simulation.chaos import run_seed
from simulation.node_faults import ClusterRun
from simulation.partition_chaos import PartitionChaos
from simulation.processes import ProcessLoop
from simulation.seeds import run_seeds

if TYPE_CHECKING:
    from simulation.devices import Device


class ClusterChaos(ClusterRun, PartitionChaos):
    """One random run."""

    answer = 4.0

    def __init__(self, seed: int, errors: list[str]) -> None:
        super().__init__(seed, errors)
        self.actions[self.crash] = sum(self.nodes.actions.values())

    def crash(self, _device: Device) -> None:
        """Something happens to a node."""
        self.nodes.strike()

    async def _check(self) -> None:
        await super()._check()
        for world in self.worlds:
            await world.compare_followers()


def run(seed: int) -> Counter[str]:
    """Run a seed; an error names it and the last actions."""
    return run_seed(ClusterChaos, seed, ProcessLoop)


if __name__ == "__main__":
    run_seeds(__doc__, run)
