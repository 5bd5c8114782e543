"""Whether the files of a log are still where its running broker stored them.

The NATS server of the broker answers from open files and its cache after they were removed: what
it answers proves nothing about them. The broker watches the files.
"""

from cli.logs.broker_client import LiveBroker
from eventstore.errors import StoreGone
from eventstore.reading.log_source import LogSource
from protocol.errors import FoldmqError

_FROM_MEMORY = "the NATS server still answers, from its memory"


async def store_damage(source: LogSource) -> str | None:
    """Return what happened to the files of a log, in a sentence; None: nothing that is known."""
    if not source.live:
        return None
    try:
        broker = LiveBroker(await source.node(), source.where, source.client)
        status = await broker.ask("status")
    except FoldmqError:  # no broker runs, or it does not answer
        return None
    damage = (status.get("log") or {}).get("store_damage")
    return f"{damage}; {_FROM_MEMORY}" if damage else None


async def require_stored(source: LogSource) -> None:
    """Raise StoreGone if the files of a log are not where its broker stored them."""
    damage = await store_damage(source)
    if damage is not None:
        raise StoreGone(damage)
