"""``foldmq`` without projections and retention, to measure their cost.

Their tasks exist and sleep; the rest of the broker is unchanged.
"""

import asyncio

from actors.maintenance.projector import Projector
from actors.maintenance.retention import Retention
from cli.main import main


async def _sleep_on(_self: object) -> None:
    await asyncio.Event().wait()


async def _nothing(_self: object) -> None:
    pass


# For this process only.
Projector.run = _sleep_on  # type: ignore[assignment, method-assign]
Projector.finish = _nothing  # type: ignore[assignment, method-assign]
Retention.run = _sleep_on  # type: ignore[assignment, method-assign]

if __name__ == "__main__":
    main()
