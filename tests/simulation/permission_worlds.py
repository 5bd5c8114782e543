"""Simulated worlds with permissions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from harness import packets as p

from actors.access.rules_file import parse_rules
from simulation.world import World

if TYPE_CHECKING:
    from simulation.network import SimClient

OPEN = "[[allow]]\nboth = ['#']\n"


def permit(world: World, text: str) -> None:
    """Reload with other permissions."""
    broker, world.permissions = world.broker, parse_rules(Path("rules.toml"), text)
    broker.reload(broker.node.options, broker.admission.authenticator, world.permissions)


def topics(client: SimClient) -> list[str]:
    return [packet.topic for packet in client.received if isinstance(packet, p.Publish)]
