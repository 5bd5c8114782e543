"""One random run of several nodes that lead several logs; a seed decides everything.

``python tests/simulation/cluster_chaos.py --seeds 200`` runs many.
"""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if __name__ == "__main__":
    _ROOT = Path(__file__).parents[2]
    sys.path[:0] = [str(_ROOT), str(_ROOT / "tests")]

from simulation.chaos import errors_of_the_broker, small_checkpoints
from simulation.loop import simulate
from simulation.partition_chaos import PartitionChaos
from simulation.partitioned_nodes import LogNode, LogWorld, Machine, make_cluster
from simulation.processes import Process, ProcessLoop
from simulation.seeds import run_seeds

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Sequence

    from simulation.devices import Device

_LOGS = 2
LONGEST = 4000.0
"""Seconds of virtual time that a run may take."""
_AWAY = [0.3, 1.0, 3.0, 3.0, 10.0, 30.0]
"""Seconds for which something is suspended or cut off."""


class ClusterChaos(PartitionChaos):
    """One random run."""

    answer = 4.0

    def __init__(self, seed: int, errors: list[str]) -> None:
        self._fate = random.Random(f"cluster {seed}")
        super().__init__(seed, errors)
        rates = [0.0, 1.0, 4.0]
        fate = self._fate
        self.actions[self.crash] = fate.choice(rates)
        self.actions[self.kill_process] = fate.choice(rates)
        self.actions[self.suspend] = fate.choice(rates)
        self.actions[self.silence] = fate.choice(rates)
        self.actions[self.unplug] = fate.choice(rates)
        self.actions[self.move] = fate.choice(rates)

    def make_worlds(self, count: int, **options: Any) -> Sequence[LogWorld]:
        del count
        fate = self._fate
        options["will_grace"] = fate.choice([0.0, 2.0, 5.0])
        worlds = make_cluster(_LOGS, fate.choice([2, 2, 3]), self.faults, **options)
        self.machines: Sequence[Machine] = worlds[0].machines
        return worlds

    # What happens to nodes.

    def crash(self, _device: Device) -> None:
        """Kill a node."""
        machine = self._fate.choice(self.machines)
        if machine.running:
            self.note(f"node {machine.name} killed")
            machine.kill()

    def kill_process(self, _device: Device) -> None:
        """Kill the process of a log."""
        node = self._some_process()
        if node.running:
            self.note(f"{self._role(node)} killed")
            node.kill()

    def _some_process(self) -> LogNode:
        """Return the process of a log, more often one that leads."""
        world = self._fate.choice(self.worlds)
        if world.serving is not None and self._fate.random() < 0.6:
            return cast("LogNode", world.serving)
        return cast("LogNode", self._fate.choice(world.nodes))

    @staticmethod
    def _role(node: LogNode) -> str:
        return "a leader" if node.world.serving is node else "a follower"

    def suspend(self, _device: Device) -> None:
        """Suspend a node, its main process, or the process of a log."""
        machine, node, fate = self._fate.choice(self.machines), self._some_process(), self._fate
        if fate.random() < 0.5:
            what, chosen = self._role(node), [node.process]
        elif fate.random() < 0.3:
            what, chosen = "a main process", [machine.process]
        else:
            what, chosen, node = "a node", machine.processes, machine.nodes[0]
        if not machine.running or not node.running or any(one.suspended for one in chosen):
            return
        self.note(f"{what} suspended")
        for process in chosen:
            process.suspend()
        seconds, owner = fate.choice(_AWAY), node.machine
        asyncio.get_running_loop().call_later(seconds, self._resume, owner, chosen)

    @staticmethod
    def _resume(machine: Machine, processes: Sequence[Process]) -> None:
        machine.resume(processes)

    def silence(self, _device: Device) -> None:
        """Cut a node, or the process of a log, off from NATS."""
        fate = self._fate
        machine, node = fate.choice(self.machines), self._some_process()
        chosen: Machine | LogNode = machine if fate.random() < 0.5 else node
        if not chosen.running or node.log.nats.silent or machine.silent:
            return
        what = "a node" if chosen is machine else self._role(node)
        self.note(f"{what} cut off from NATS")
        chosen.silence()
        asyncio.get_running_loop().call_later(fate.choice(_AWAY), chosen.restore)

    def unplug(self, _device: Device) -> None:
        """Cut a node off from the other nodes."""
        machine = self._fate.choice(self.machines)
        if machine.running and not machine.unplugged:
            self.note("a node cut off from the others")
            machine.unplugged = True
            asyncio.get_running_loop().call_later(self._fate.choice(_AWAY), machine.plug_in)

    def move(self, _device: Device) -> None:
        """Let a leader hand over to another node."""
        world = self._fate.choice(self.worlds)
        leader = world.serving
        others = [one.name for one in world.nodes if one is not leader]
        if leader is not None and leader.move(self._fate.choice(others)):
            self.note("a leader hands over")

    # The run.

    async def start(self) -> None:
        cast("ProcessLoop", asyncio.get_running_loop()).limit = LONGEST
        for machine in self.machines:
            machine.start()
        while not all(world.up for world in self.worlds):  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.05)

    async def repair(self) -> None:
        for machine in self.machines:
            broken = not machine.running or not all(one.running for one in machine.nodes)
            if broken and self._fate.random() < 0.2:
                machine.start()
        for world in self.worlds:
            world._look()

    async def mend(self) -> None:
        for machine in self.machines:
            machine.resume(machine.processes)
            if machine.silent:
                machine.restore()
            for node in machine.nodes:
                if node.log.nats.silent:
                    node.restore()
            machine.plug_in()
            machine.start()

    async def _check(self) -> None:
        await super()._check()
        for world in self.worlds:
            await world.compare_followers()

    async def run(self) -> Counter[str]:
        try:
            counts = await super().run()
        finally:
            for machine in self.machines:
                machine.kill()
            await asyncio.sleep(0)
        return counts + self.faults.counts


def run(seed: int) -> Counter[str]:
    """Run a seed; an error names it and says what happened last."""
    with small_checkpoints(), errors_of_the_broker() as errors:
        chaos = ClusterChaos(seed, errors)
        try:
            return simulate(chaos.run, ProcessLoop)
        except BaseException as error:
            error.add_note(f"seed {seed}: " + "; ".join(chaos.trace[-40:]))
            raise


if __name__ == "__main__":
    run_seeds(__doc__, run)
