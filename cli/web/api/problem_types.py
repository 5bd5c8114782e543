"""The errors of the web page's process as answers of HTTP, and as problem details (RFC 9457)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cli.logs.broker_client import NoLiveBroker, Refused, TooLarge
from cli.web.api.live_lists import ListExpired
from eventstore.errors import (
    CutMeanwhile,
    CutOff,
    NatsUnavailable,
    NoLog,
    NotFound,
    UsageError,
)
from protocol.errors import FoldmqError


class RequestRefused(FoldmqError):  # noqa: N818 - named for the condition, as in eventstore.errors
    """A request is refused by the API itself, before or while it is answered."""

    retry_after = 0
    """Seconds after which to try again; 0: no time is given."""

    def __init__(self, sentence: str, **fields: object) -> None:
        super().__init__(sentence)
        self.fields = fields
        """Further members of the problem details."""


class Unauthorized(RequestRefused):
    """There is no valid token."""


class Forbidden(RequestRefused):
    """The token does not permit this."""


class NotYet(RequestRefused):
    """The answer does not include a position yet."""

    retry_after = 1


class TooDear(RequestRefused):
    """The answer takes too long, or too many such requests wait."""

    retry_after = 5


class TooManyRequests(RequestRefused):
    """The token sends more requests than are allowed."""

    retry_after = 1


class TooManyStreams(RequestRefused):
    """More streams are open than are allowed."""

    retry_after = 5


class BodyTooLarge(RequestRefused):
    """The body of a request is too large."""


class NotAcceptable(RequestRefused):
    """No form of the answer is one that the client accepts."""


class UnsupportedType(RequestRefused):
    """The body of a request has a type that cannot be read."""


class MethodNotAllowed(RequestRefused):
    """There is no such operation for this method."""


class KeyReused(RequestRefused):
    """An idempotency key was used before with another body."""


class CutBefore(CutOff):
    """The answer is in a part of the log that was cut off; ``first`` is the first record now."""

    def __init__(self, sentence: str, first: int) -> None:
        super().__init__(sentence)
        self.fields = {"first": str(first)}


class PublishRefused(RequestRefused):
    """The broker does not accept a message."""


@dataclass(frozen=True, slots=True)
class ProblemType:
    """A kind of problem."""

    name: str
    status: int
    title: str
    doc: str
    """What to do about it."""


_INTERNAL: Final = ProblemType(
    "internal", 500, "The request failed", "The broker's log has the reason."
)

_TYPES: Final[dict[type[FoldmqError], ProblemType]] = {
    UsageError: ProblemType(
        "invalid-request", 400, "The request is invalid", "Correct the parameter that is named."
    ),
    Unauthorized: ProblemType(
        "unauthorized",
        401,
        "A valid token is required",
        "Send 'Authorization: Bearer TOKEN' with a token of 'foldmq web-token add'.",
    ),
    Forbidden: ProblemType(
        "forbidden", 403, "The token does not permit this", "Use a token with another role."
    ),
    NotFound: ProblemType("not-found", 404, "There is no such thing", "Check the names."),
    Refused: ProblemType("not-found", 404, "There is no such thing", "Check the names."),
    NoLog: ProblemType("no-log", 404, "There is no log", "Check the location of the log."),
    MethodNotAllowed: ProblemType(
        "method-not-allowed", 405, "The method is not allowed", "Use a method that Allow names."
    ),
    NotAcceptable: ProblemType(
        "not-acceptable",
        406,
        "No acceptable form of the answer exists",
        "Accept application/json, or for lists application/x-ndjson or text/event-stream.",
    ),
    PublishRefused: ProblemType(
        "refused",
        409,
        "The broker refused the message",
        "See 'reason': not_permitted, payload_format, reserved_topic, topic_levels, "
        "personal_keys, "
        "qos2_rejected or message_too_large.",
    ),
    CutOff: ProblemType("cut", 410, "This part of the log was cut off", "Ask for a later moment."),
    ListExpired: ProblemType(
        "list-expired", 410, "The list has expired", "Request it again, without next."
    ),
    BodyTooLarge: ProblemType("body-too-large", 413, "The body is too large", "Send less at once."),
    TooLarge: ProblemType(
        "answer-too-large", 413, "The answer is too large", "Ask for less at once."
    ),
    UnsupportedType: ProblemType(
        "unsupported-type",
        415,
        "The type of the body is not supported",
        "Send application/json, or application/x-ndjson for many messages.",
    ),
    KeyReused: ProblemType(
        "key-reused",
        422,
        "The idempotency key belongs to another request",
        "Use a new key for each request.",
    ),
    TooManyRequests: ProblemType(
        "too-many-requests", 429, "Too many requests", "Wait as long as Retry-After says."
    ),
    TooManyStreams: ProblemType(
        "too-many-streams", 429, "Too many streams are open", "Close one first."
    ),
    NotYet: ProblemType(
        "not-yet", 503, "The answer does not include this position yet", "Try again."
    ),
    TooDear: ProblemType(
        "too-dear",
        503,
        "The answer takes too long",
        "Try again later, ask for less, or use the command in 'command'.",
    ),
    CutMeanwhile: ProblemType(
        "cut-meanwhile", 503, "The log was cut while it was read", "Try again."
    ),
    NoLiveBroker: ProblemType(
        "unavailable", 503, "The broker does not answer", "Try again, or check the broker."
    ),
    NatsUnavailable: ProblemType(
        "unavailable", 503, "The broker does not answer", "Try again, or check the broker."
    ),
    FoldmqError: _INTERNAL,
}
"""The problem of each class of errors; that of a class applies to its subclasses."""

BY_NAME: Final = {kind.name: kind for kind in _TYPES.values()}


def problem_of(error: BaseException) -> ProblemType:
    """Return the problem of an error; the table names the class or one of its bases."""
    for kind in type(error).__mro__:
        if kind in _TYPES:
            return _TYPES[kind]
    return _INTERNAL


def problem_details(error: FoldmqError, sentence: str, base: str) -> dict[str, Any]:
    """Return the problem details of an error, as text ``sentence``; ``base`` is the API's path."""
    kind = problem_of(error)
    more: Mapping[str, object] = getattr(error, "fields", {})
    return {
        "type": f"{base}/problem-types/{kind.name}",
        "title": kind.title,
        "status": kind.status,
        "detail": sentence,
        **more,
    }


def retry_after(error: FoldmqError) -> int:
    """Return after how many seconds to try again; 0: no time is given."""
    if isinstance(error, RequestRefused):
        return error.retry_after
    return 1 if problem_of(error).status == 503 else 0
