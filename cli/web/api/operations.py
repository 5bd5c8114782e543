"""The table of operations: it gives routes, the OpenAPI document, and tools for language models."""

from __future__ import annotations

from typing import Final

from cli.web.api import live_answers as live
from cli.web.api import message_answers as messages
from cli.web.api import past_answers as past
from cli.web.api import schemas
from cli.web.api.operation import Cost, Operation
from cli.web.api.parameters import NoParams, Params
from cli.web.api.publishing import PublishedMessage, ReceiptObject
from cli.web.tokens import Role

BASE: Final = "/api/v1"
"""Path of the API."""
_VIEW, _CHEAP, _DEAR = Role.VIEW, Cost.CHEAP, Cost.DEAR

OPERATIONS: Final = (
    Operation(
        *("status", "GET", "/status", Params, schemas.StatusObject, _VIEW, _CHEAP, live.status),
        "The status of the broker; with several logs, of the broker of each.",
        "foldmq status",
    ),
    Operation(
        *("metrics-summary", "GET", "/metrics-summary", Params, schemas.SummaryObject),
        *(_VIEW, _CHEAP, live.metrics_summary),
        "The figures of the status, added up over all logs.",
        "foldmq status",
    ),
    Operation(
        *("problems", "GET", "/problems", live.ProblemsParams, schemas.ProblemObject),
        *(_VIEW, _CHEAP, live.problems),
        "The current problems with evidence, cause and next command, the most urgent first.",
        "foldmq doctor",
        is_list=True,
        is_snapshot=False,
    ),
    Operation(
        *("sessions", "GET", "/sessions", live.SessionsParams, schemas.SessionRow),
        *(_VIEW, _CHEAP, live.sessions),
        "The sessions of clients.",
        "foldmq sessions ls",
        is_list=True,
        is_snapshot=False,
    ),
    Operation(
        *("session", "GET", "/sessions/{id}", live.SessionParams, schemas.SessionObject),
        *(_VIEW, _CHEAP, past.session),
        "A session in full, now or as of a moment.",
        "foldmq sessions show CLIENT, foldmq replay --session CLIENT --at MOMENT",
        moments=("at",),
    ),
    Operation(
        *("subscriptions", "GET", "/subscriptions", live.SubscriptionsParams),
        *(schemas.ReceiversObject, _VIEW, _CHEAP, live.subscriptions),
        "Who would receive a message on a topic, and who would not, and why.",
        "foldmq subscriptions --topic TOPIC",
    ),
    Operation(
        *("retained", "GET", "/retained", live.RetainedParams, schemas.RetainedObject),
        *(_VIEW, _CHEAP, past.retained),
        "The retained messages on matching topics, now or as of a moment; payloads are in lists of "
        "the past, and need a token that may see them.",
        "foldmq retained ls, foldmq replay --topic FILTER --at MOMENT",
        is_list=True,
        is_snapshot=False,
        moments=("at",),
    ),
    Operation(
        *("retained-message", "GET", "/retained/{topic}", live.TopicParams),
        *(schemas.RetainedObject, _VIEW, _CHEAP, live.one_retained),
        "A retained message; its payload needs a token that may see it.",
        "foldmq retained get TOPIC",
    ),
    Operation(
        *("state", "GET", "/state", past.StateParams, schemas.StateRow),
        *(_VIEW, _DEAR, past.state),
        "The state as of a moment: first the totals, then each session and retained message.",
        "foldmq replay --at MOMENT",
        is_list=True,
        moments=("at",),
    ),
    Operation(
        *("diff", "GET", "/diff", past.DiffParams, schemas.DiffObject, _VIEW, _DEAR, past.diff),
        "The differences between the states at two moments, of each log.",
        "foldmq diff FROM TO",
        is_list=True,
        moments=("from_", "to"),
    ),
    Operation(
        *("message", "GET", "/messages/{position}", messages.MessageParams),
        *(schemas.PublicationObject, _VIEW, _CHEAP, messages.message),
        "The message that took effect at a position; its payload needs a token that may see it.",
        "foldmq history FILTER",
    ),
    Operation(
        *("story", "GET", "/messages/{position}/story", past.StoryParams),
        *(schemas.StoryObject, _VIEW, _DEAR, past.story),
        "What happened to a message: publication, deliveries, acknowledgements, drops.",
        "foldmq why --position POSITION",
        is_list=True,
    ),
    Operation(
        *("why", "GET", "/why", past.WhyParams, schemas.StoryObject, _VIEW, _DEAR, past.why),
        "What happened to the last messages on a topic, or why a client did not get them.",
        "foldmq why --topic TOPIC",
        is_list=True,
    ),
    Operation(
        *("events", "GET", "/events", past.EventsParams, schemas.EventObject),
        *(_VIEW, _DEAR, past.events),
        "The events of the log, in its order.",
        "foldmq log",
        is_list=True,
        may_follow=True,
    ),
    Operation(
        *("history", "GET", "/history", messages.HistoryParams, schemas.PublicationObject),
        *(Role.VIEW_ALL, _DEAR, messages.history),
        "The messages of the past on matching topics, each where it took effect.",
        "foldmq history FILTER",
        is_list=True,
        may_follow=True,
    ),
    Operation(
        *("last", "GET", "/last", messages.LastParams, schemas.PublicationObject),
        *(Role.VIEW_ALL, _DEAR, messages.last),
        "The last message on each matching topic, retained or not.",
        "foldmq history FILTER --last",
        is_list=True,
        is_snapshot=False,
    ),
    Operation(
        *("publish", "POST", "/messages", NoParams, ReceiptObject, Role.PUBLISH, _CHEAP, None),
        "Publish a message, or one for each line of NDJSON; each has a receipt when it is on disk.",
        "foldmq pub",
        body=PublishedMessage,
    ),
)
