"""What happens to the nodes of a simulated cluster with several logs, by chance."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from simulation.partitioned_nodes import LogNode, LogWorld, Machine, make_cluster
from simulation.processes import ProcessLoop

if TYPE_CHECKING:
    from simulation.faults import Faults

LONGEST = 4000.0
"""Seconds of virtual time that a run may take."""
_LOGS = 2
_AWAY = [0.3, 1.0, 3.0, 3.0, 10.0, 30.0]
"""Seconds for which something is suspended or cut off."""


class NodeFaults:
    """The nodes of a run, and their faults; ``note`` is called for each."""

    def __init__(self, seed: int, note: Callable[[str], None], longest: float) -> None:
        self._fate = fate = random.Random(f"cluster {seed}")
        self._note = note
        self._longest = longest
        self.worlds: Sequence[LogWorld] = ()
        self.machines: Sequence[Machine] = ()
        rates = [0.0, 1.0, 4.0]
        self.actions: dict[Callable[[], None], float] = {
            deed: fate.choice(rates)
            for deed in (
                self.kill,
                self.kill_process,
                self.suspend,
                self.silence,
                self.unplug,
                self.move,
            )
        }

    def make(self, faults: Faults, **options: Any) -> Sequence[LogWorld]:
        """Return the logs of a cluster."""
        fate = self._fate
        grace = fate.choice([0.0, 2.0, 5.0])
        count = fate.choice([2, 2, 3])
        self.worlds = make_cluster(_LOGS, count, faults, will_grace=grace, **options)
        self.machines = self.worlds[0].machines
        return self.worlds

    def strike(self) -> None:
        """Let one of all things happen."""
        deeds = list(self.actions)
        weights = [0.001 + self.actions[deed] for deed in deeds]
        self._fate.choices(deeds, weights)[0]()

    def kill(self) -> None:
        """Kill a node."""
        machine = self._fate.choice(self.machines)
        if machine.running:
            self._note(f"node {machine.name} killed")
            machine.kill()

    def kill_process(self) -> None:
        """Kill the process of a log."""
        node = self._some_process()
        if node.running:
            self._note(f"{self._role(node)} killed")
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

    def suspend(self) -> None:
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
        self._note(f"{what} suspended")
        for process in chosen:
            process.suspend()
        asyncio.get_running_loop().call_later(fate.choice(_AWAY), machine.resume, chosen)

    def silence(self) -> None:
        """Cut a node, or the process of a log, off from NATS."""
        fate = self._fate
        machine, node = fate.choice(self.machines), self._some_process()
        chosen: Machine | LogNode = machine if fate.random() < 0.5 else node
        if not chosen.running or node.cut or machine.silent:
            return
        what = "a node" if chosen is machine else self._role(node)
        self._note(f"{what} cut off from NATS")
        chosen.silence()
        asyncio.get_running_loop().call_later(fate.choice(_AWAY), chosen.restore)

    def unplug(self) -> None:
        """Cut a node off from the other nodes."""
        machine = self._fate.choice(self.machines)
        if machine.running and not machine.unplugged:
            self._note("a node cut off from the others")
            machine.unplugged = True
            asyncio.get_running_loop().call_later(self._fate.choice(_AWAY), machine.plug_in)

    def move(self) -> None:
        """Let a leader hand over to another node."""
        world = self._fate.choice(self.worlds)
        leader = world.serving
        others = [node.name for node in world.nodes if node is not leader]
        if leader is not None and leader.move(self._fate.choice(others)):
            self._note("a leader hands over")

    async def start(self) -> None:
        """Start all nodes; return when each log has a leader that serves."""
        cast("ProcessLoop", asyncio.get_running_loop()).limit = self._longest
        for machine in self.machines:
            machine.start()
        while not all(world.up for world in self.worlds):  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.05)

    def repair(self) -> None:
        """Start nodes again, some time after their end."""
        for machine in self.machines:
            broken = not machine.running or not all(node.running for node in machine.nodes)
            if broken and self._fate.random() < 0.2:
                machine.start()
        for world in self.worlds:
            world._look()

    def mend(self) -> None:
        """Let all nodes run and reach each other."""
        for machine in self.machines:
            machine.resume(machine.processes)
            machine.restore()
            machine.plug_in()
            machine.start()

    async def end(self) -> None:
        """End all nodes."""
        for machine in self.machines:
            machine.kill()
        await asyncio.sleep(0)


class ClusterRun:
    """What random runs of a cluster have in common: the first base of one of several logs."""

    def __init__(self, seed: int, errors: list[str]) -> None:
        self.nodes = NodeFaults(seed, self.note, LONGEST)
        super().__init__(seed, errors)  # type: ignore[call-arg]  # it is not the last base

    if TYPE_CHECKING:
        faults: Faults

        def note(self, what: str) -> None: ...

    def make_worlds(self, count: int, **options: Any) -> Sequence[LogWorld]:
        """Return the logs; ``count`` is not used."""
        del count
        return self.nodes.make(self.faults, **options)

    async def start(self) -> None:
        """Start all nodes."""
        await self.nodes.start()

    async def repair(self) -> None:
        """Start nodes again, some time after their end."""
        self.nodes.repair()

    async def mend(self) -> None:
        """Let all nodes run and reach each other."""
        self.nodes.mend()

    async def run(self) -> Counter[str]:
        """Run; return how often what happened."""
        try:
            counts: Counter[str] = await super().run()  # type: ignore[misc]
        finally:
            await self.nodes.end()
        return counts + self.faults.counts
