"""``foldmq reload``: a running broker reads its settings and their files again."""

import asyncio
import sys

import typer

from cli.commands.bulk_change import operator_name
from cli.common import text
from cli.logs.broker_client import LiveBroker, NoAnswer, Refused
from cli.logs.broker_search import open_brokers
from cli.logs.source_flags import SourceFlags


def reload_settings(flags: SourceFlags) -> None:
    """Reload, and print the outcome of each process.

    Raises typer.Exit if the new configuration is refused, NoLiveBroker if a broker does not answer.
    """
    asyncio.run(_reload(flags))


async def _reload(flags: SourceFlags) -> None:
    async with open_brokers(flags) as brokers:
        refused = False
        for broker, (restart, refusal) in await brokers.each(_ask):
            where = brokers.prefix(broker.node)
            if refusal:
                refused = True
                sys.stderr.write(f"foldmq: {where}{refusal}\n")
                continue
            sys.stdout.write(f"{where}settings reloaded\n")
            if restart:
                names = ", ".join(map(text.escaped, restart))
                sys.stdout.write(f"{where}changed settings that need a restart: {names}\n")
        sys.stdout.flush()
    brokers.check_complete()
    if refused:
        raise typer.Exit(1)


async def _ask(broker: LiveBroker) -> tuple[list[str], str]:
    """Return the changed settings that need a restart, and why the reload was refused."""
    try:
        answer = await broker.ask("change", do="reload", by=operator_name())
        return answer["restart"], ""
    except Refused as refusal:
        return [], str(refusal)
    except NoAnswer as error:
        raise NoAnswer(f"{error}; the settings may still be reloaded") from None
