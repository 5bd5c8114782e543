"""A method of enhanced authentication that the external check decides about, step by step.

Each step is a request like that for a login, with the data of the client. docs/authentication.md
describes request and reply, field by field.
"""

from __future__ import annotations

import base64
import binascii
import secrets
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from actors.authn.callout import BadAnswer, read_fields, read_verdict, request_fields
from actors.authn.credentials import Verdict
from actors.authn.enhanced import Challenge, Outcome

if TYPE_CHECKING:
    from actors.authn.callout import Callout
    from actors.authn.enhanced import Exchange, Step

MAX_STATE: Final = 16 * 1024
"""Characters of the state that a service gets back with the next step."""
MAX_REASON: Final = 1024
"""Characters of the reason that a client is told with a challenge."""
_MAX_DATA: Final = 65_535
"""Bytes of Authentication Data in a packet."""
_VERDICT_FIELDS: Final = frozenset(
    {"allow", "user", "groups", "publish", "subscribe", "expires", "cache", "reason", "data_base64"}
)
_CHALLENGE_FIELDS: Final = frozenset({"continue", "data_base64", "state", "reason"})


class _Progress(NamedTuple):
    """What is known of an exchange from its steps so far."""

    exchange: str
    step: int
    state: str | None


class CalloutMethod:
    """Asks the service at each step; nothing is cached."""

    label = "callout"

    def __init__(self, callout: Callout) -> None:
        self._callout = callout

    async def step(self, exchange: Exchange, data: bytes | None) -> Step:
        """Ask."""
        callout, credentials = self._callout, exchange.credentials
        known: _Progress = exchange.progress or _Progress(secrets.token_hex(16), 0, None)
        at = known._replace(step=known.step + 1)

        def read(reply: bytes) -> Step:
            nonlocal at
            fields = read_fields(reply, _VERDICT_FIELDS | _CHALLENGE_FIELDS)
            if "continue" in fields:
                at = at._replace(state=_state(fields))
                return _challenge(fields)
            return _outcome(fields, exchange, callout)

        request = {
            **request_fields(credentials, callout.node),
            "method": exchange.method,
            "data_base64": None if data is None else base64.b64encode(data).decode("ascii"),
            "exchange": at.exchange,
            "step": at.step,
            "state": known.state,
            "reauthentication": exchange.reauthenticates,
        }
        found = await callout.ask(orjson.dumps(request), credentials.address, read)
        exchange.progress = at
        return Outcome(found) if isinstance(found, Verdict) else found


def _challenge(fields: dict[str, Any]) -> Challenge:
    if fields["continue"] is not True:
        raise BadAnswer('"continue" is not true')
    for name in fields:
        if name not in _CHALLENGE_FIELDS:
            raise BadAnswer(f'the answer has both "continue" and "{name}"')
    reason = fields.get("reason")
    if reason is not None and (
        not isinstance(reason, str) or len(reason) > MAX_REASON or "\0" in reason
    ):
        raise BadAnswer(f'"reason" is no text of at most {MAX_REASON} characters')
    return Challenge(_data(fields), reason or None)


def _state(fields: dict[str, Any]) -> str | None:
    state = fields.get("state")
    if state is not None and (not isinstance(state, str) or len(state) > MAX_STATE):
        raise BadAnswer(f'"state" is no text of at most {MAX_STATE} characters')
    return state


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
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise BadAnswer('"data_base64" is no Base64') from None
    if len(data) > _MAX_DATA:
        raise BadAnswer(f'"data_base64" has more than {_MAX_DATA} bytes')
    return data
