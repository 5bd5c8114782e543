"""``foldmq confirm-clock``: the clock is right, so that the time off before a start counts."""

import asyncio
import sys

import typer

from cli.commands.bulk_change import operator_name
from cli.common import text
from cli.logs.broker_client import LiveBroker, NoAnswer, Refused
from cli.logs.broker_search import open_brokers
from cli.logs.source_flags import SourceFlags


def confirm_clock(flags: SourceFlags) -> None:
    """Confirm the clock, and print which sessions each process removed.

    Raises typer.Exit if there is nothing to confirm, NoLiveBroker if a broker does not answer.
    """
    asyncio.run(_confirm(flags))


async def _confirm(flags: SourceFlags) -> None:
    async with open_brokers(flags) as brokers:
        confirmed = False
        for broker, outcome in await brokers.each(_ask):
            where = brokers.prefix(broker.node)
            if isinstance(outcome, str):
                sys.stderr.write(f"foldmq: {where}{outcome}\n")
                continue
            held_ms, removed = outcome
            confirmed = True
            sys.stdout.write(
                f"{where}{text.duration(held_ms)} off count now: "
                f"{text.count_of(removed, 'session')} removed\n"
            )
        sys.stdout.flush()
    brokers.check_complete()
    if not confirmed:
        raise typer.Exit(1)


async def _ask(broker: LiveBroker) -> tuple[int, int] | str:
    """Return the time off and the number of removed sessions, or why there is no such time."""
    try:
        answer = await broker.ask("change", do="confirm_clock", by=operator_name())
        return answer["held_ms"], answer["removed"]
    except Refused as refusal:
        return str(refusal)
    except NoAnswer as error:
        raise NoAnswer(f"{error}; the clock may still be confirmed") from None
