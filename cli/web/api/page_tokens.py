"""The parameter ``next``: where a list continues, and of which moment it is."""

from __future__ import annotations

import base64
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import orjson

from cli.web.api.operation import Call
from eventstore.errors import UsageError

if TYPE_CHECKING:
    from cli.web.api.operation import Operation
    from cli.web.api.parameters import Params


def list_digest(operation: Operation, params: Params) -> str:
    """Return what names a list: its operation and parameters."""
    shown = params.model_dump(mode="json", exclude={"next", "limit", "after", *operation.moments})
    about = orjson.dumps([operation.name, shown], option=orjson.OPT_SORT_KEYS)
    return blake2b(about, digest_size=8).hexdigest()


def page_token(value: dict[str, Any]) -> str:
    """Return the parameter ``next`` of the following page: place, list and moments."""
    return base64.urlsafe_b64encode(orjson.dumps(value)).decode().rstrip("=")


def continued(
    call: Call, operation: Operation, params: Params, token: str, about: str
) -> tuple[Call, Params]:
    """Return the call and the parameters of the next page; raises UsageError."""
    wrong = UsageError("next: is not that of the page before, of the same list")
    try:
        value = orjson.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        place, moments = value["place"], value["moments"]
        if value["about"] != about or not isinstance(place, str):
            raise wrong
        if not isinstance(moments, dict) or not moments.keys() <= set(operation.moments):
            raise wrong
        texts = {name: each for name, each in moments.items() if isinstance(each, str)}
    except (ValueError, KeyError, TypeError):
        raise wrong from None
    return Call(call.link, call.lists, call.payloads, place), params.model_copy(update=texts)
