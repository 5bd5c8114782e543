"""Members of a shared subscription in a cluster with several nodes and logs: random runs.

``python tests/simulation/cluster_shares.py --seeds 200`` runs many.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    _ROOT = Path(__file__).parents[2]
    sys.path[:0] = [str(_ROOT), str(_ROOT / "tests")]

from collections import Counter

from simulation.chaos import run_seed
from simulation.node_faults import ClusterRun
from simulation.partition_shares import PartitionShares
from simulation.processes import ProcessLoop
from simulation.seeds import run_seeds

_STRIKE = 0.1
"""Chance that something happens to a node in a step."""


class ClusterShares(ClusterRun, PartitionShares):
    """One random run."""

    async def repair(self) -> None:
        """Start nodes again, some time after their end; let something happen to one."""
        await super().repair()
        if self.chance.random() < _STRIKE:
            self.nodes.strike()


def run(seed: int) -> Counter[str]:
    """Run a seed; an error names it and the last actions."""
    return run_seed(ClusterShares, seed, ProcessLoop)


if __name__ == "__main__":
    run_seeds(__doc__, run)
