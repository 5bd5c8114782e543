"""Answers about the running brokers, as the commands that ask them give them."""

from collections.abc import AsyncIterator
from typing import Annotated, Any

from pydantic import Field

from cli.commands.actor_page import read_session
from cli.commands.doctor import advice_object, diagnosis
from cli.commands.published_messages import add_setters, with_published
from cli.commands.receivers import preview, receivers_object
from cli.commands.retained import retained_message
from cli.commands.session_list import session_selection
from cli.commands.status import added_up, ask_statuses, status_object
from cli.common import text
from cli.logs.log_brokers import LogBrokers, unsure_notes
from cli.logs.topic_flags import check_filter, check_topic
from cli.web.api.live_lists import row_number
from cli.web.api.operation import Call, Item, StreamMark, unsure_mark
from cli.web.api.parameters import ListParams, Moment, Name, Params
from eventstore.errors import UsageError
from projections.views.vocabulary import json_object, plain

_ITEMS = 100
"""Maximum items of each list of a session."""
_SUMMARY = ("connections", "sessions", "census", "messages", "dropped", "retained", "process")


async def brokers_of(call: Call, log: str | None) -> LogBrokers:
    """Return the brokers to ask; raises NoLiveBroker, also if there is no such log."""
    brokers = await call.link.open()
    if log and brokers.several:
        return LogBrokers([brokers.of_log(log)], brokers.logs, brokers.directory)
    return brokers


async def status(call: Call, params: Params) -> dict[str, Any]:
    """Return the status of the broker, or of each log's."""
    brokers = await brokers_of(call, params.log)
    return status_object(await ask_statuses(brokers), brokers)


async def metrics_summary(call: Call, params: Params) -> dict[str, Any]:
    """Return the figures of the status, added up over all logs."""
    brokers = await brokers_of(call, params.log)
    total = added_up(await ask_statuses(brokers))
    summary = {name: total[name] for name in _SUMMARY}
    ready = total["ready"] and not brokers.absent
    return {"ready": ready, "subscriptions": total["subscriptions"], **summary}


class ProblemsParams(ListParams):
    """The parameters of ``problems``."""

    subject: Annotated[
        Name | None, Field(description="A client or a topic: only its problems.")
    ] = None


async def problems(call: Call, params: ProblemsParams) -> AsyncIterator[Item | StreamMark]:
    """Yield the current problems, the most urgent first."""
    brokers = await brokers_of(call, params.log)
    advice, _, unsure = await diagnosis(brokers, call.link.flags, params.subject)
    for mark in unsure_mark(unsure):
        yield mark
    for item in numbered(call, map(advice_object, advice)):
        yield item


class SessionsParams(ListParams):
    """The parameters of ``sessions``."""

    match: Annotated[
        Name | None, Field(max_length=256, description="A pattern of client identifiers: pump-*.")
    ] = None
    connected: Annotated[
        bool | None, Field(description="Whether the client is connected; without it: all.")
    ] = None
    offline_for: Annotated[
        str | None,
        Field(
            max_length=32, examples=["7d"], description="Only sessions that are offline so long."
        ),
    ] = None


async def _unsure(call: Call, log: str | None) -> list[str]:
    """Return what is not certain of the states of the brokers that answer, or of a log's."""
    answers = await call.link.ask_each("status")
    return unsure_notes(answer for answer in answers if not log or answer[0] in ("", log))


async def sessions(call: Call, params: SessionsParams) -> AsyncIterator[Item | StreamMark]:
    """Yield the sessions that match."""
    selection = session_selection(params.match, params.connected, params.offline_for)
    for mark in unsure_mark(await _unsure(call, params.log)):
        yield mark
    if call.link.names and params.match is None:
        selection["without_logs"] = True
    parts = call.lists.parts("sessions", selection, call.start, params.log, of_all=True)
    async for part in parts:
        for row, place in part:
            yield Item(row_object(row), place)


class SessionParams(Params):
    """The parameters of ``session``."""

    id: Annotated[Name, Field(description="The client identifier.")]
    at: Annotated[Moment | None, Field(description="The moment; without it: now.")] = None


async def live_session(call: Call, params: SessionParams) -> dict[str, Any]:
    """Return a session as it is now."""
    brokers = await brokers_of(call, params.log)
    broker = brokers.of_session(params.id)
    view = await read_session(broker, params.id, _ITEMS)
    view = await with_published(broker, view, thorough=False)
    return as_object(plain(view))


class SubscriptionsParams(Params):
    """The parameters of ``subscriptions``."""

    topic: Annotated[Name, Field(description="The topic of a message.")]
    qos: Annotated[int, Field(ge=0, le=2, description="The QoS of a message.")] = 1
    size: Annotated[
        int | None, Field(ge=0, le=268_435_455, description="The size of its payload in bytes.")
    ] = None
    at: Annotated[
        Moment | None,
        Field(description="The moment: which subscriptions matched then. Without it: now."),
    ] = None


async def live_subscriptions(call: Call, params: SubscriptionsParams) -> dict[str, Any]:
    """Return what would happen to a message on a topic, for each subscription."""
    check_topic(params.topic)
    brokers = await brokers_of(call, params.log)
    rows, retained = await preview(brokers, params.topic, params.qos, params.size)
    receivers = as_object(receivers_object(brokers, params.topic, params.qos, rows, retained))
    return with_unsure(receivers, await _unsure(call, params.log))


class RetainedParams(ListParams):
    """The parameters of ``retained``."""

    filter: Annotated[Name, Field(description="A topic filter.")] = "#"
    at: Annotated[Moment | None, Field(description="The moment; without it: now.")] = None


async def live_retained(call: Call, params: RetainedParams) -> AsyncIterator[Item | StreamMark]:
    """Yield the retained messages on matching topics, without payloads."""
    check_filter(params.filter)
    brokers = await brokers_of(call, params.log)
    for mark in unsure_mark(await _unsure(call, params.log)):
        yield mark
    selection = {"filter": params.filter, "not_permitted": False}
    async for part in call.lists.parts("retained", selection, call.start, params.log):
        rows = [row for row, _ in part]
        for broker in brokers.present:
            own = [row for row in rows if row.get("log", "") in ("", broker.node)]
            await add_setters(broker, own)
        for row, place in part:
            yield Item(row_object(row), place)


class TopicParams(Params):
    """The parameters of ``retained-message``."""

    topic: Annotated[Name, Field(description="The topic.")]


async def one_retained(call: Call, params: TopicParams) -> dict[str, Any]:
    """Return a retained message; its payload only to callers who may see it."""
    check_topic(params.topic)
    brokers = await brokers_of(call, params.log)
    message, payload = await retained_message(brokers, params.topic)
    shown = {**message, **text.payload_field(payload)} if call.payloads else message
    return with_unsure(shown, await _unsure(call, params.log))


def numbered(call: Call, rows: Any) -> Any:
    """Yield the rows of a list that is computed again for each page, behind the last one given."""
    behind = row_number(call.start or "0")
    if behind is None:
        raise UsageError("next: is not that of the page before, of the same list")
    for number, row in enumerate(rows, 1):
        if number > behind:
            yield Item(row, str(number))


def row_object(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of a broker as a JSON object; of the only log, it does not name it."""
    return as_object({key: value for key, value in row.items() if key != "log" or value})


def with_unsure(answer: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    """Return an answer with what is not certain of it, because records were lost."""
    return {**answer, "unsure": notes} if notes else answer


def as_object(view: object) -> dict[str, Any]:
    """Return a view as a JSON object."""
    shown = json_object(view)
    assert isinstance(shown, dict)  # noqa: S101 - every view is an object
    return shown
