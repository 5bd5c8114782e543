"""Auth callout: an external service decides about logins, by a NATS request with a timeout.

Request and reply are JSON. Without a valid reply the login is rejected: a timeout, an error, and a
reply with an unknown field all count as "not available". docs/authentication.md describes request
and reply field by field.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import secrets
from collections import OrderedDict
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import orjson
import structlog

from actors.access.credentials import LATEST_MS, AuthResult, Credentials, Verdict, is_name
from actors.access.enhanced import Challenge, Exchange, Outcome, Step
from actors.access.fair_queue import FairQueue, SingleFlight
from actors.access.filter_index import FilterError, parse_filter
from actors.access.rules import Rule
from actors.access.verdict_cache import VerdictCache
from eventstore.display import escaped
from eventstore.nats.request_client import UnansweredError

MAX_REQUEST: Final = 256 * 1024
MAX_REPLY: Final = 64 * 1024
MAX_ENTRIES: Final = 500
"""Maximum number of groups in a reply, and of filters in all of its lists together."""
MAX_CACHE_S: Final = 86_400.0

MAX_STATE: Final = 16 * 1024
"""Maximum characters of the state that a service gets back with the next step."""
MAX_REASON: Final = 1024
"""Maximum characters of the reason string sent with a challenge."""
_CHALLENGE_FIELDS: Final = frozenset({"continue", "data_base64", "state", "reason"})

_REMEMBERED_BYTES: Final = 16 << 20
_ENTRY_BYTES: Final = 500
_SHARED_RULES: Final = 256
_FIELDS: Final = frozenset(
    {"allow", "user", "groups", "publish", "subscribe", "history", "expires", "cache", "reason"}
)
_ACTIONS: Final = ("publish", "subscribe", "history")
_VERDICT_FIELDS: Final = _FIELDS | {"data_base64"}
_WHERE: Final = "auth callout"
_NOTHING: Final = Rule(allow=False, publish=True, subscribe=True, filter="#", where=_WHERE)
_TOO_LONG: Final = Verdict(AuthResult.BAD_CREDENTIALS, reason="too long for the auth callout")

log = structlog.get_logger("foldmq")

T = TypeVar("T")


class RequestSender(Protocol):
    """Sends requests; ``eventstore.nats.request_client.RequestClient`` is one."""

    async def ask(self, request: bytes, seconds: float) -> bytes:
        """Return the reply; raises UnansweredError if there is none within ``seconds``."""

    def close(self) -> None:
        """Close the connection once the last request is answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalloutOptions:
    """Options of the auth callout. Times are in seconds."""

    timeout: float = 2.0
    """Timeout from the login to the reply, including the time in the queue."""
    at_once: int = 64
    """Maximum number of concurrent requests."""
    cache_allowed: float = 60.0
    """Seconds for which an acceptance is cached, unless the reply sets another time; 0: not
    cached."""
    cache_denied: float = 5.0
    """Seconds for which a rejection is cached, unless the reply sets another time; 0: not
    cached."""
    node: str = ""
    """Name of this broker, for the service."""


class Answer(NamedTuple):
    """The content of a reply."""

    verdict: Verdict
    cache_s: float | None


class BadAnswer(Exception):  # noqa: N818 - it is not an error of ours
    """An invalid reply; the text describes the error without quoting the reply."""


class Callout:
    """Asks the service about logins; ``time_ms`` returns Unix time.

    Decisions are cached under a keyed hash of the whole request, so that the service may use any
    part of it. Simultaneous logins with the same credentials share one request.
    """

    def __init__(
        self, options: CalloutOptions, asker: RequestSender, time_ms: Callable[[], int]
    ) -> None:
        self.asked = 0
        """Requests since the start."""
        self.unanswered = 0
        """Requests without a valid reply."""
        self._options = options
        self._asker = asker
        self._time_ms = time_ms
        self._queue = FairQueue(options.at_once)
        self._single_flight: SingleFlight[Verdict] = SingleFlight()
        self._verdicts = VerdictCache(_REMEMBERED_BYTES)
        self._last_problem = ""
        self._rules: OrderedDict[tuple[Rule, ...], tuple[Rule, ...]] = OrderedDict()

    @property
    def waiting(self) -> int:
        """Number of queued logins."""
        return self._queue.waiting

    @property
    def node(self) -> str:
        """The name of this broker, for the service."""
        return self._options.node

    def now_ms(self) -> int:
        """Return Unix time in milliseconds."""
        return self._time_ms()

    def check_now(self, credentials: Credentials) -> Verdict | None:
        """Return a cached decision."""
        return self._verdicts.get(self._key(credentials), self._time_ms())

    async def check(self, credentials: Credentials) -> Verdict:
        """Return the decision of the service, or a cached one."""
        key = self._key(credentials)
        cached = self._verdicts.get(key, self._time_ms())
        if cached is not None:
            return cached
        return await self._single_flight.do(key, lambda: self._find_out(key, credentials))

    def close(self) -> None:
        """Close the connection once the running requests are answered."""
        self._asker.close()

    def _key(self, credentials: Credentials) -> bytes:
        return self._verdicts.key(
            credentials.username,
            credentials.password,
            credentials.client_id,
            credentials.address,
            credentials.listener,
            credentials.certificate_user,
        )

    async def _find_out(self, key: bytes, credentials: Credentials) -> Verdict:
        def read(reply: bytes) -> tuple[Answer, int]:
            return read_answer(reply, credentials, self._time_ms()), len(reply)

        request = render_request(credentials, self._options.node)
        result = await self.ask(request, credentials.address, read)
        if isinstance(result, Verdict):
            return result
        answer, size = result
        answer = answer._replace(verdict=self.shared(answer.verdict))
        self._keep(key, answer, size)
        return answer.verdict

    async def ask(self, request: bytes, address: str, read: Callable[[bytes], T]) -> T | Verdict:
        """Return the result of ``read`` for the reply to a request; a rejection without a reply.

        ``read`` raises BadAnswer for an invalid reply.
        """
        if len(request) > MAX_REQUEST:
            return _TOO_LONG
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._options.timeout
        try:
            async with asyncio.timeout_at(deadline):
                await self._queue.enter(address)
            try:
                self.asked += 1
                result = read(await self._asker.ask(request, deadline - clock()))
            finally:
                self._queue.leave()
        except (UnansweredError, BadAnswer) as error:
            return self._unavailable(str(error))
        except TimeoutError:
            return self._unavailable("too many logins are waiting for the auth callout")
        self._last_problem = ""
        return result

    def _keep(self, key: bytes, answer: Answer, size: int) -> None:
        options, verdict = self._options, answer.verdict
        seconds = answer.cache_s
        if seconds is None:
            seconds = options.cache_allowed if verdict.accepted else options.cache_denied
        until = self._time_ms() + int(min(seconds, MAX_CACHE_S) * 1000)
        if verdict.expires_ms:
            until = min(until, verdict.expires_ms)
        if until > self._time_ms():
            self._verdicts.put(key, verdict, until, _ENTRY_BYTES + size)

    def shared(self, verdict: Verdict) -> Verdict:
        """Return the verdict with a shared object for its rules: each object is indexed once."""
        rules = verdict.rules
        if rules is None:
            return verdict
        kept = self._rules.setdefault(rules, rules)
        self._rules.move_to_end(rules)
        if len(self._rules) > _SHARED_RULES:
            self._rules.popitem(last=False)
        return verdict._replace(rules=kept)

    def _unavailable(self, why: str) -> Verdict:
        self.unanswered += 1
        if why != self._last_problem:  # logged once until it works again, or fails differently
            self._last_problem = why
            log.warning("auth callout failed", reason=why)
        return Verdict(AuthResult.UNAVAILABLE, reason=f"auth callout: {why}")


def render_request(credentials: Credentials, node: str) -> bytes:
    """Return the request about a login as JSON."""
    return orjson.dumps(request_fields(credentials, node))


def request_fields(credentials: Credentials, node: str) -> dict[str, object]:
    """Return the fields of a request; a password that is not UTF-8 is sent as Base64."""
    question: dict[str, object] = {
        "version": 1,
        "node": node,
        "client": credentials.client_id,
        "user": credentials.username,
        "address": credentials.address,
        "listener": credentials.listener,
        "certificate_user": credentials.certificate_user,
        "password": None,
    }
    if credentials.password is not None:
        try:
            question["password"] = credentials.password.decode("utf-8")
        except UnicodeDecodeError:
            question["password_base64"] = base64.b64encode(credentials.password).decode("ascii")
    return question


def read_answer(reply: bytes, credentials: Credentials, now_ms: int) -> Answer:
    """Return the verdict of a reply; raises BadAnswer unless all of it is valid."""
    fields = read_fields(reply, _FIELDS)
    verdict = read_verdict(fields, credentials, now_ms)
    return Answer(verdict, _optional(fields, "cache", _are_seconds, "a number of seconds"))


def read_fields(reply: bytes, field_names: Container[str]) -> dict[str, Any]:
    """Return the fields of a reply; raises BadAnswer for one that is not ``known``."""
    if len(reply) > MAX_REPLY:
        raise BadAnswer(f"the answer has more than {MAX_REPLY} bytes")
    try:
        fields = orjson.loads(reply)
    except orjson.JSONDecodeError:
        raise BadAnswer("the answer is not JSON") from None
    if not isinstance(fields, dict):
        raise BadAnswer("the answer is not a JSON object")
    for name in fields:
        if name not in field_names:
            raise BadAnswer(f"the answer has an unknown field: {escaped(name, 40)}")
    return fields


def read_verdict(fields: dict[str, Any], credentials: Credentials, now_ms: int) -> Verdict:
    """Return the verdict in the fields of a reply; raises BadAnswer."""
    allow = fields.get("allow")
    if allow is True:
        return _allowed(fields, credentials, now_ms)
    if allow is not False:
        raise BadAnswer('"allow" is missing, or neither true nor false')
    reason = _optional(fields, "reason", _is_text, "text") or ""
    why = escaped(reason, 100) if reason else "refused by the auth callout"
    return Verdict(AuthResult.BAD_CREDENTIALS, reason=why)


def _allowed(fields: dict[str, Any], credentials: Credentials, now_ms: int) -> Verdict:
    user = _optional(fields, "user", is_name, "a name")
    if user is None:
        user = credentials.certificate_user
    if user is None:
        user = credentials.username
    if user is not None and not is_name(user):
        raise BadAnswer('"user" is not a name')
    groups: Sequence[str] = ()
    if fields.get("groups"):  # some languages write an empty list as an empty object
        groups = _optional(fields, "groups", _are_names, "a list of names")
    expires = _optional(fields, "expires", _are_seconds, "a number of seconds")
    expires_ms = int(max(0, min(expires * 1000, LATEST_MS))) if expires is not None else 0
    if expires is not None and expires_ms <= now_ms:
        raise BadAnswer('"expires" is in the past')
    return Verdict(
        AuthResult.ACCEPTED, user, groups=tuple(groups), rules=_rules(fields), expires_ms=expires_ms
    )


def _rules(fields: dict[str, Any]) -> tuple[Rule, ...] | None:
    if all(fields.get(action) is None for action in _ACTIONS):
        return None
    rules: list[Rule] = []
    for action in _ACTIONS:
        lists = fields.get(action)
        if lists is None:
            continue
        if isinstance(lists, list):
            lists = {"allow": lists}
        if not isinstance(lists, dict) or not lists.keys() <= {"allow", "deny"}:
            raise BadAnswer(f'"{action}" is neither a list nor "allow" and "deny"')
        for verb, filters in lists.items():
            rules.extend(_action_rules(action, verb, filters))
    if len(rules) > MAX_ENTRIES:
        raise BadAnswer(f"the answer has more than {MAX_ENTRIES} filters")
    # Empty lists allow nothing; no rules at all would allow everything.
    return tuple(rules) or (_NOTHING,)


def _action_rules(action: str, verb: str, filters: object) -> list[Rule]:
    if filters is None:
        return []
    if not isinstance(filters, list):
        raise BadAnswer(f'"{verb}" of "{action}" is not a list of topic filters')
    rules = []
    for number, text in enumerate(filters, 1):
        try:
            parse_filter(text)
        except (FilterError, TypeError, AttributeError):
            raise BadAnswer(f'entry {number} of "{verb}" of "{action}" is not a filter') from None
        rules.append(
            Rule(
                verb == "allow",
                publish=action == "publish",
                subscribe=action == "subscribe",
                filter=text,
                where=_WHERE,
                history=action == "history",
            )
        )
    return rules


def _optional(fields: dict[str, Any], name: str, is_valid: Callable[[Any], bool], what: str) -> Any:
    """Return a field, None if there is none; raises BadAnswer if it is not ``what``."""
    value = fields.get(name)
    if value is not None and not is_valid(value):
        raise BadAnswer(f'"{name}" is not {what}')
    return value


def _is_text(value: object, limit: int = MAX_REPLY) -> bool:
    return isinstance(value, str) and len(value) <= limit


def _are_names(value: object) -> bool:
    return isinstance(value, list) and len(value) <= MAX_ENTRIES and all(map(is_name, value))


def _are_seconds(value: object) -> bool:
    # orjson accepts neither NaN nor infinity.
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


# Enhanced authentication: a request for each step.


class _Progress(NamedTuple):
    """State of an exchange after its steps so far."""

    exchange: str
    step: int
    state: str | None


class CalloutMethod:
    """Asks the service at each step; nothing is cached."""

    label = "callout"

    def __init__(self, callout: Callout) -> None:
        self._callout = callout

    async def step(self, exchange: Exchange, data: bytes | None) -> Step:
        """Return the answer of the service to a step of the client."""
        callout, credentials = self._callout, exchange.credentials
        previous: _Progress = exchange.progress or _Progress(secrets.token_hex(16), 0, None)
        at = previous._replace(step=previous.step + 1)

        def read(reply: bytes) -> Step:
            nonlocal at
            fields = read_fields(reply, _VERDICT_FIELDS | _CHALLENGE_FIELDS)
            if "continue" in fields:
                what = f"text of at most {MAX_STATE} characters"
                at = at._replace(state=_optional(fields, "state", _is_state, what))
                return _challenge(fields)
            return _outcome(fields, exchange, callout)

        request = {
            **request_fields(credentials, callout.node),
            "method": exchange.method,
            "data_base64": None if data is None else base64.b64encode(data).decode("ascii"),
            "exchange": at.exchange,
            "step": at.step,
            "state": previous.state,
            "reauthentication": exchange.reauthenticates,
        }
        result = await callout.ask(orjson.dumps(request), credentials.address, read)
        exchange.progress = at
        return Outcome(result) if isinstance(result, Verdict) else result


def _challenge(fields: dict[str, Any]) -> Challenge:
    if fields["continue"] is not True:
        raise BadAnswer('"continue" is not true')
    for name in fields:
        if name not in _CHALLENGE_FIELDS:
            raise BadAnswer(f'the answer has both "continue" and "{name}"')
    reason = _optional(fields, "reason", _is_reason, f"text of at most {MAX_REASON} characters")
    return Challenge(_data(fields), reason or None)


def _is_reason(value: object) -> bool:
    return _is_text(value, MAX_REASON) and "\0" not in str(value)


def _is_state(value: object) -> bool:
    return _is_text(value, MAX_STATE)


def _outcome(fields: dict[str, Any], exchange: Exchange, callout: Callout) -> Outcome:
    for name in fields:
        if name not in _VERDICT_FIELDS:
            raise BadAnswer(f'the answer has both "allow" and "{name}"')
    verdict = read_verdict(fields, exchange.credentials, callout.now_ms())
    if verdict.accepted and not verdict.user:
        raise BadAnswer('the answer has no "user", and CONNECT has no user name')
    return Outcome(callout.shared(verdict), _data(fields))


def _data(fields: dict[str, Any]) -> bytes | None:
    text = fields.get("data_base64")
    if text is None:
        return None
    try:
        return base64.b64decode(text, validate=True)  # the size of a reply limits its length
    except (binascii.Error, TypeError, ValueError):
        raise BadAnswer('"data_base64" is not Base64') from None
