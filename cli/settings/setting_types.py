"""The types and groups of settings, how they are read, and what is said of a wrong value."""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from cli.common.units import Address, address, seconds, size, size_shown, time_shown
from cli.settings.setting_flags import is_read_by
from cli.settings.setting_sources import ConfigError, Layer, merge_layers
from eventstore.home_paths import NoHome, expand_home

# Settings whose values no message shows.
_SECRETS = ("nats_password", "bridge_password", "nats_url", "bridge_url")
# Disables a listener.
OFF = "off"
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}")


def several(value: object) -> object:
    """Split a text at its commas."""
    return value.split(",") if isinstance(value, str) else value


def _sync(value: object) -> object:
    return value if value == "always" else seconds(value)


def _address_or_off(value: object) -> object:
    return None if value is None or value == OFF else address(value)


def _host(value: object) -> str:
    text = str(value).strip()
    if not _HOST.fullmatch(text):
        raise ValueError("must be host names without a port, such as broker.example.com")
    return text


def _expanded(path: Path) -> Path:
    try:
        return expand_home(path)
    except NoHome:
        raise ValueError("this home directory does not exist") from None


Size = Annotated[int, BeforeValidator(size)]
OptionalSize = Annotated[int | None, BeforeValidator(size)]
Seconds = Annotated[float, BeforeValidator(seconds), Field(allow_inf_nan=False)]
SyncOrSeconds = BeforeValidator(_sync)
OptionalAddress = Annotated[Address | None, BeforeValidator(_address_or_off)]
HostNames = Annotated[tuple[Annotated[str, BeforeValidator(_host)], ...], BeforeValidator(several)]
ExpandedPath = Annotated[Path, AfterValidator(_expanded)]


Group = TypeVar("Group", bound="SettingsGroup")


class SettingsGroup(BaseModel):
    """Settings that belong together. Help pages need no validators: the first use builds them."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, hide_input_in_errors=True, defer_build=True
    )

    @field_validator("*", mode="before")
    @classmethod
    def _check_kinds(cls, value: object, info: ValidationInfo) -> object:
        return checked_kind(cls.model_fields[info.field_name or ""], value)


def read_settings(group: type[Group], layers: list[Layer], problems: Iterable[str] = ()) -> Group:
    """Return the settings of a group from all sources.

    Raises ConfigError with a line for each problem, behind those found before.
    """
    values = merge_layers(layers)
    try:
        return group(**{name: values[name] for name in group.model_fields if name in values})
    except ValidationError as error:
        # One problem for each setting, or for each element of a list.
        invalid = {wrong["loc"][:2]: wrong for wrong in reversed(error.errors())}
    for place in [place for place in invalid if len(place) > 1]:
        invalid.pop(place[:1], None)
    sentences = [_sentence(group, wrong, layers) for wrong in invalid.values()]
    raise ConfigError(*problems, *reversed(sentences))


def _sentence(group: type[SettingsGroup], error: ErrorDetails, layers: Iterable[Layer]) -> str:
    name, *element = error["loc"]
    name = str(name)
    layer = next(layer for layer in layers if name in layer.values)
    given = error["input"] if element else layer.values[name]
    value = "" if name in _SECRETS else " = " + json.dumps(given, default=str)
    return f"{layer.shown(name)}{value}: {allowed(name, group.model_fields[name], error)}"


def checked_kind(field: FieldInfo, value: object) -> object:
    """Return a value, unless no setting of this kind can have it: then raise ValueError."""
    if isinstance(value, bool) and field.annotation not in (bool, bool | None):
        if get_origin(field.annotation) is Literal:
            return value  # its problem names the words that are allowed
        words = ", not true or false"
        if any(getattr(one, "func", None) is _address_or_off for one in field.metadata):
            raise ValueError(f'must be host:port or "{OFF}"{words}')
        if any(getattr(one, "func", None) is _sync for one in field.metadata):
            raise ValueError(f'must be "always" or a time such as 1s{words}')
        raise ValueError("must not be true or false")
    if _holds_nul(value):
        # No file has such a name, and C libraries would cut the text there.
        raise ValueError("must not contain a NUL character")
    return value


def _holds_nul(value: object) -> bool:
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, Mapping):
        return any(map(_holds_nul, value.values()))
    return isinstance(value, list | tuple) and any(map(_holds_nul, value))


# Elements of the settings that are lists.
_LISTED = {
    "jwt_audience": "name",
    "listen": "host:port",
    "metrics_hosts": "host name",
    "proxy_from": "network",
    "ws_origins": "origin",
    "web_cors": "origin",
    "ws_path": "path",
    "bridge_always": "topic filter",
    "record_qos0": "topic filter",
    "streams": "NAME=FILTER",
    "web_api_jwt_roles": "GROUP=ROLE",
    "personal_topics": "topic filter",
    "personal_clients": "pattern",
    "personal_users": "pattern",
    "bridge_client_headers": "header name",
    "bridge_filters": "topic filter",
    "bridge_map": "TOPIC=SUBJECT",
    "bridge_user_map": "USER=SUBJECT",
}


def allowed(name: str, field: FieldInfo, error: ErrorDetails) -> str:
    """Return the valid values, from pydantic's error."""
    limits: dict[str, Any] = error.get("ctx", {})
    match error["type"]:
        case "int_parsing" | "int_from_float" | "int_type":
            return "must be a whole number"
        case "float_parsing" | "float_type" | "finite_number":
            return "must be a number"
        case "bool_parsing" | "bool_type":
            return "must be true or false"
        case "greater_than_equal":
            return f"must be at least {_bound(limits['ge'], field)}"
        case "greater_than":
            return f"must be more than {_bound(limits['gt'], field)}"
        case "less_than_equal":
            return f"must be at most {_bound(limits['le'], field)}"
        case "literal_error":
            return f"must be {limits['expected']}"
        case "string_type" | "path_type":
            return "must be text"
        case "string_too_short":
            return "must not be empty"
        case "too_short":
            return f"must be a list with at least one {_LISTED[name]}"
        case "tuple_type":
            listed = _LISTED[name]
            return f"must be a list of {listed}{'' if {':', '='} & {*listed} else 's'}"
        case "value_error":
            return str(limits["error"])
    return "is not valid"


def _bound(number: float, field: FieldInfo) -> object:
    """Return a limit as it is written in settings."""
    if number and is_read_by(seconds, field):
        return time_shown(number)
    if number and is_read_by(size, field):
        return size_shown(int(number))
    return int(number) if number == int(number) else number
