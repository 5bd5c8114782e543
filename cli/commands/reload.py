"""``foldmq reload`` and ``foldmq confirm-clock``: each process of a broker answers for itself."""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import typer

from cli.commands.bulk_change import operator_name
from cli.common import text
from cli.logs.broker_client import LiveBroker, NoAnswer, Refused
from cli.logs.broker_search import open_brokers
from cli.logs.source_flags import SourceFlags, run_to_end


@run_to_end
async def reload_settings(flags: SourceFlags) -> None:
    """Reload the settings and their files, and print the outcome of each process.

    Raises typer.Exit if the new configuration is refused, NoLiveBroker if a broker does not answer.
    """
    made = await _change_all(flags, "reload", _reloaded, "the settings may still be reloaded")
    if not all(made):
        raise typer.Exit(1)


@run_to_end
async def confirm_clock(flags: SourceFlags) -> None:
    """Confirm the clock, so that the time off counts; print which sessions each process removed.

    Raises typer.Exit if there is nothing to confirm, NoLiveBroker if a broker does not answer.
    """
    made = await _change_all(flags, "confirm_clock", _confirmed, "the clock may still be confirmed")
    if not any(made):
        raise typer.Exit(1)


async def _change_all(
    flags: SourceFlags, what: str, lines: Callable[[dict[str, Any]], Iterator[str]], doubt: str
) -> list[bool]:
    """Request a change of each process and print the outcomes; return which of them made it.

    ``doubt`` is said of a process that does not answer.
    """

    async def ask(broker: LiveBroker) -> dict[str, Any] | str:
        try:
            return await broker.ask("change", do=what, by=operator_name())
        except Refused as refusal:
            return str(refusal)
        except NoAnswer as error:
            raise NoAnswer(f"{error}; {doubt}") from None

    made = []
    async with open_brokers(flags) as brokers:
        for broker, outcome in await brokers.each(ask):
            where = brokers.prefix(broker.node)
            made.append(not isinstance(outcome, str))
            if isinstance(outcome, str):
                sys.stderr.write(f"foldmq: {where}{outcome}\n")
                continue
            sys.stdout.writelines(f"{where}{line}\n" for line in lines(outcome))
        sys.stdout.flush()
    brokers.check_complete()
    return made


def _reloaded(answer: dict[str, Any]) -> Iterator[str]:
    yield "settings reloaded"
    if answer["restart"]:
        names = ", ".join(map(text.escaped, answer["restart"]))
        yield f"changed settings that need a restart: {names}"


def _confirmed(answer: dict[str, Any]) -> Iterator[str]:
    removed = text.count_of(answer["removed"], "session")
    yield f"{text.duration(answer['held_ms'])} off count now: {removed} removed"
