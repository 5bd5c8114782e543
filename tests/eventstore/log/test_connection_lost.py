"""Whether a lost connection to NATS means that nothing is acknowledged."""

from simulation.world import SimLog, World, simulate


def test_a_process_that_only_reads_a_log_acknowledges_nothing_anyway() -> None:
    async def scenario() -> None:
        async with World().running() as world:
            assert world.log.connection_lost()
            reader = SimLog(world.server, world.watermark, world.keyed, reads=True)
            assert not reader.connection_lost()

    simulate(scenario)
