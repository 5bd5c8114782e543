"""Cuts of the log."""

from eventstore.format.node_events import LogCut
from simulation.world import World


def cuts(world: World) -> list[LogCut]:
    return [event for event in world.disk.events() if isinstance(event, LogCut)]
