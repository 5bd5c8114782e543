"""The parameters of operations: their types, bounds and texts, and moments in a log."""

import re
import time
from collections.abc import Mapping
from datetime import UTC
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cli.common.units import seconds
from eventstore.display import escaped
from eventstore.errors import UsageError
from eventstore.reading.position_text import PointSpec
from eventstore.reading.position_text import parse_point as parse

MOST_ROWS: Final = 1000
"""Maximum rows of a page."""
_UNIX_TIME: Final = re.compile(r"@([0-9]{1,11})(\.[0-9]{1,6})?")
_LONGEST: Final = 40_000
"""Maximum characters of a name: more may not fit into a URL."""

Name = Annotated[str, Field(min_length=1, max_length=_LONGEST)]
Moment = Annotated[
    str,
    Field(
        min_length=1,
        max_length=64,
        examples=["12.3", "10m", "2026-11-20T12:49:10Z"],
        description="A position such as 12 or 12.3, a time in UTC such as 2026-11-20T12:49:10Z or "
        "@1764408600, or an age such as 10m.",
    ),
]


class NoParams(BaseModel):
    """No parameters."""

    model_config = ConfigDict(extra="forbid")


class Params(BaseModel):
    """The parameters of an operation; all may name a log, and a position to wait for."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    log: Annotated[
        str | None,
        Field(max_length=200, description="The log to ask, where a broker has several."),
    ] = None
    after: Annotated[
        str | None,
        Field(
            pattern=r"^([^:,]{1,200}:)?[0-9]{1,13}(\.[0-9]{1,7})?(,[^:,]{1,200}:[0-9]{1,13}(\.[0-9]{1,7})?)*$",
            max_length=4000,
            description="Wait until the answer includes this position, for 5 s at most.",
        ),
    ] = None


class ListParams(Params):
    """The parameters of a list."""

    limit: Annotated[
        int, Field(ge=1, le=MOST_ROWS, description="Maximum number of items of a page.")
    ] = 100
    next: Annotated[
        str | None,
        Field(min_length=1, max_length=8000, description="``next`` of the page before."),
    ] = None


def read_params(kind: type[Params], values: Mapping[str, Any]) -> Params:
    """Return the parameters of a request; raises UsageError that names the first invalid one."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the request"
        message = first["msg"][:1].lower() + first["msg"][1:]
        raise UsageError(f"{escaped(where, 80)}: {escaped(message, 300)}") from None


def moment(source: str) -> PointSpec:
    """Parse a moment; raises UsageError with the expected forms."""
    text = source.strip()
    now_ms = time.time() * 1000
    if text == "now":
        return PointSpec(text, time_ms=round(now_ms))
    unix = _UNIX_TIME.fullmatch(text)
    if unix is not None:
        return PointSpec(text, time_ms=round(float(text[1:]) * 1000))
    if text[-1:].isalpha() and text[-1:] != "Z":
        try:
            span = seconds(text.removesuffix(" ago"))
        except ValueError:
            span = None
        if isinstance(span, float):
            return PointSpec(text, time_ms=round(now_ms - span * 1000))
    point = parse(text, UTC)
    if point is None:
        raise UsageError(
            f'not a moment: "{escaped(source, 80)}"; expected a position such as 12 or 12.3, a '
            "time such as 2026-11-20T12:49:10Z or @1764408600, an age such as 10m, or now"
        )
    return point
