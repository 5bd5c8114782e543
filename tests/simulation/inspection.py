"""Questions and changes to the broker of a simulated world."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulation.world import World


async def ask(world: World, endpoint: str, **request: Any) -> dict[str, Any]:
    """Return the answer of the inspector."""
    return await world.broker.inspection.inspector.ask_for(endpoint, request)


async def change(world: World, do: str, **request: Any) -> dict[str, Any]:
    """Request a change by an operator."""
    return await ask(world, "change", do=do, by="ann@desk", **request)
