"""Logs of two brokers of one node, with clients of both."""

from types import SimpleNamespace
from typing import Any

from harness import packets as p
from hypothesis import strategies as st
from simulation.loop import simulate
from simulation.network import SimClient
from simulation.partitions import PartitionWorld, make_partitions, name_in

FILTERS = ["a/#", "a/b", "#", "+", "$share/g/a/#"]
TOPICS = ["a", "a/b", "c"]
CLIENTS = 4
PARTITION_STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["publish", "publish", "release", "subscribe", "unsubscribe", "leave", "kill"]
        ),
        st.integers(0, CLIENTS - 1),
        st.integers(0, 11),
    ),
    max_size=25,
)


class PlayedPartitions:
    """Two brokers of one node, and what clients of both did."""

    def __init__(self, steps: list[tuple[str, int, int]]) -> None:
        self.logs: dict[str, Any] = {}
        self.names: list[str] = []
        self._steps = steps
        self._clients: dict[int, SimClient] = {}
        self._pid = 0
        simulate(self._play)

    async def _play(self) -> None:
        worlds = make_partitions(2)
        self.names = [name_in(worlds, at % 2, f"c{at}-") for at in range(CLIENTS)]
        for world in worlds:
            await world.start()
        await worlds[0].go(0.1)
        try:
            for what, who, number in [("subscribe", 0, 0), ("subscribe", 1, 2), *self._steps]:
                await self._step(worlds, what, who, number)
            await worlds[0].go(3)
            for world in worlds:
                await world.broker.wait_durable()
        finally:
            for world in worlds:
                await world.crash()
        for world in worlds:
            history = world.disk.stream.history
            records = [SimpleNamespace(sequence=at, data=history[at]) for at in sorted(history)]
            self.logs[world.name] = SimpleNamespace(log=SimpleNamespace(records=records))

    async def _step(self, worlds: list[PartitionWorld], what: str, who: int, number: int) -> None:
        world = worlds[who % 2]
        if what == "kill":
            await world.crash()
            for at in [at for at in self._clients if at % 2 == who % 2]:
                del self._clients[at]
            await world.start()
            await world.go(0.5)
            return
        client = self._clients.get(who)
        if client is None:
            client = self._clients[who] = await world.connect(self.names[who])
        self._pid += 1
        if what == "publish":
            qos = number % 3
            topic = TOPICS[number // 3 % 3]
            pid = self._pid if qos else None
            client.send(p.publish(topic, b"%d" % number, qos, pid, retain=number > 9))
        elif what == "release":
            client.send(p.pubrel(number + 1))
        elif what == "subscribe":
            client.send(p.subscribe(self._pid, (FILTERS[number % 5], number % 3)))
        elif what == "unsubscribe":
            client.send(p.unsubscribe(self._pid, FILTERS[number % 5]))
        else:
            client.drop()
            del self._clients[who]
        await world.go(0.2)
        for one in client.take():
            if isinstance(one, p.Publish) and one.qos and one.packet_id and number % 2:
                client.send((p.puback if one.qos == 1 else p.pubrec)(one.packet_id))
