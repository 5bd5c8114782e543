"""``foldmq actors kick``, ``actors restart`` and ``foldmq sessions kick``."""

from collections.abc import Iterable
from typing import Any

from cli.commands.actor_page import ask_session, broker_of, find_actor
from cli.commands.bulk_change import (
    ChangeResult,
    change,
    confirmed,
    find_sessions,
    tell,
    tell_all,
)
from cli.commands.command_flags import ChangeOptions
from cli.common import text
from cli.logs.broker_client import LiveBroker, Refused
from cli.logs.broker_search import open_brokers
from cli.logs.source_flags import SourceFlags, run_to_end


@run_to_end
async def kick(flags: SourceFlags, clients: list[str], manner: ChangeOptions) -> None:
    """Close the connections of clients; raises typer.Exit if some were not connected."""
    await _kick(flags, clients, manner)


@run_to_end
async def kick_actor(flags: SourceFlags, which: str, manner: ChangeOptions) -> None:
    """Close the connection with an actor ID, of a session's actor ID, or of a client."""
    async with open_brokers(flags) as brokers:
        broker = broker_of(brokers, which)
        answer = await find_actor(broker, which)
        if answer is None:
            client = (await ask_session(broker, which, most=0))["session"]
        else:
            client = answer["actor"]["client"]
        if answer is not None and answer["actor"]["type"] == "connection":
            row = answer["actor"]
            whose = f" of {text.name(client)}" if client is not None else ", not logged in yet"
            result = ChangeResult()
            lines = [f"  {row['id']}  from {text.escaped(row['name'])}{whose}"]
            if await confirmed(lines, "close 1 connection", manner):
                await _try(broker, result, "kick", actor=row["id"])
            tell(result, "kicked", "client", manner)
            return
        if answer is not None and answer["actor"]["type"] != "session":
            raise Refused(f"{which} is neither a session nor a connection")
    await _kick(flags, [client], manner)


@run_to_end
async def restart(flags: SourceFlags, which: str, manner: ChangeOptions) -> None:
    """Replace an actor, or the session of a client; raises Refused if that is impossible."""
    async with open_brokers(flags) as brokers:
        broker = broker_of(brokers, which)
        row = await _actor(broker, which)
        lines = [f"  {text.escaped(row['id'])}  {text.name(row['name'])}, {row['state']}"]
        what = f"restart {text.escaped(row['id'])}"
        if row["type"] == "session" and row["state"] == "connected":
            what += " and disconnect its client"
        result = ChangeResult()
        if await confirmed(lines, what, manner):
            await _try(broker, result, "restart", actor=row["id"])
        tell(result, "restarted", "actor", manner)


async def _kick(flags: SourceFlags, clients: Iterable[str], manner: ChangeOptions) -> None:
    async with open_brokers(flags) as brokers:
        result = ChangeResult()
        connected = await find_sessions(brokers, clients, result, _connected)
        lines = [f"  {text.name(client)}  {about}" for client, about in connected.items()]
        what = f"disconnect {text.count_of(len(connected), 'client')}"
        if connected and await confirmed(lines, what, manner):
            for client in connected:
                broker = brokers.of_session(client)
                if broker in brokers.present:
                    with brokers.leaving_out(broker):
                        await _try(broker, result, "kick", client=client)
        tell_all(brokers, result, "kicked", "client", manner)


async def _actor(broker: LiveBroker, which: str) -> dict[str, Any]:
    """Return the actor with this ID, or the session of this client; raises Refused."""
    answer = await find_actor(broker, which)
    if answer is None:
        session = await ask_session(broker, which, most=0)
        if session["actor"] is None:
            raise Refused(
                f"the session of {text.name(which)} is offline and has no actor to restart"
            )
        answer = await broker.ask("actor", id=session["actor"], most=1)
    row: dict[str, Any] = answer["actor"]
    return row


async def _try(broker: LiveBroker, result: ChangeResult, what: str, /, **request: Any) -> None:
    """Request one change and record a refusal in the result."""
    try:
        await change(broker, what, result, **request)
    except Refused as error:
        result.refused.append(str(error))


def _connected(session: dict[str, Any]) -> str:
    """Return the address of a client; raises Refused if it is not connected."""
    connection = session["connection"]
    if connection is None:
        raise Refused(f"{text.name(session['session'])} is not connected")
    kind = "clean" if session["clean"] else "persistent"
    return f"connected from {text.escaped(connection['address'])}, {kind} session"
