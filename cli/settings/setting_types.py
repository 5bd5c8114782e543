"""The types and groups of settings, how they are read, and what is said of a wrong value."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
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

from cli.common.attribute_texts import texts_below
from cli.common.units import Address, address, seconds, size, size_shown, time_shown
from cli.settings.setting_sources import ConfigError, Layer, merge_layers
from eventstore.home_paths import NoHome, expand_home

# Settings whose values no message shows.
_SECRETS = ("nats_password", "bridge_password", "nats_url", "bridge_url")
# Disables a listener.
OFF = "off"
_NOT_SET = (None, False, ())
"""Values of settings that ask for nothing."""
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}")


def several(value: object) -> object:
    """Split a text at its commas."""
    return value.split(",") if isinstance(value, str) else value


@dataclass(frozen=True, slots=True)
class Elements(BeforeValidator):
    """Reads a list; ``noun`` is what its elements are called in messages and help pages."""

    noun: str = ""


def sync_interval(value: object) -> object:
    """Read a time or ``always``; raises ValueError."""
    return value if value == "always" else seconds(value)


def address_or_off(value: object) -> object:
    """Read an address; ``off`` stands for None. Raises ValueError."""
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
SyncOrSeconds = BeforeValidator(sync_interval)
OptionalAddress = Annotated[Address | None, BeforeValidator(address_or_off)]
HostNames = Annotated[
    tuple[Annotated[str, BeforeValidator(_host)], ...], Elements(several, noun="host name")
]
ExpandedPath = Annotated[Path, AfterValidator(_expanded)]


Group = TypeVar("Group", bound="SettingsGroup")


class SettingsGroup(BaseModel):
    """Settings that belong together, described by the text below each.

    Help pages need no validators: the first use builds them.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, hide_input_in_errors=True, defer_build=True
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **_options: object) -> None:
        """Describe the settings; pydantic's use_attribute_docstrings takes seven times as long."""
        texts = texts_below(cls.__module__).get(cls.__name__, {})
        for name, field in cls.model_fields.items():
            field.description = texts.get(name, field.description)

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


def also_needs(settings: SettingsGroup, other: str, *names: str) -> Iterator[str]:
    """Yield a message for each of some settings that is set without another one."""
    if getattr(settings, other) in _NOT_SET:
        for name in names:
            if getattr(settings, name) not in _NOT_SET:
                yield f"{name} also needs {other}"


def both_set(settings: SettingsGroup, name: str, other: str) -> Iterator[str]:
    """Yield a message if two settings are set of which only one may be."""
    if not {getattr(settings, name), getattr(settings, other)} & {*_NOT_SET}:
        yield f"{name} and {other} cannot be combined: set one of them"


def _sentence(group: type[SettingsGroup], error: ErrorDetails, layers: Iterable[Layer]) -> str:
    name, *element = error["loc"]
    name = str(name)
    layer = next(layer for layer in layers if name in layer.values)
    written = error["input"] if element else layer.values[name]
    value = "" if name in _SECRETS else " = " + json.dumps(written, default=str)
    return f"{layer.shown(name)}{value}: {allowed(group.model_fields[name], error)}"


def checked_kind(field: FieldInfo, value: object) -> object:
    """Return a value, unless no setting of this kind can have it: then raise ValueError."""
    if isinstance(value, bool) and field.annotation not in (bool, bool | None):
        if get_origin(field.annotation) is Literal:
            return value  # its problem names the words that are allowed
        words = ", not true or false"
        if is_read_by(address_or_off, field):
            raise ValueError(f'must be host:port or "{OFF}"{words}')
        if is_read_by(sync_interval, field):
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


def is_read_by(reader: Callable[[object], object], field: FieldInfo) -> bool:
    """Return whether a function reads the values of a setting."""
    return any(getattr(check, "func", None) is reader for check in field.metadata)


def noun_of_elements(field: FieldInfo) -> str:
    """Return what the elements of a list are called; empty if the setting is no list."""
    return next((check.noun for check in field.metadata if isinstance(check, Elements)), "")


def allowed(field: FieldInfo, error: ErrorDetails) -> str:
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
            return f"must be a list with at least one {noun_of_elements(field)}"
        case "tuple_type":
            noun = noun_of_elements(field)
            return f"must be a list of {noun}{'' if {':', '='} & {*noun} else 's'}"
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
