"""The types of settings: each parses a text and describes the valid values."""

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_settings import NoDecode

from cli.common.units import Address, address, seconds, size
from eventstore.home_paths import NoHome, expand_home

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
Addresses = Annotated[
    tuple[Annotated[Address, BeforeValidator(address)], ...], NoDecode, BeforeValidator(several)
]
OptionalAddress = Annotated[Address | None, NoDecode, BeforeValidator(_address_or_off)]
HostNames = Annotated[
    tuple[Annotated[str, BeforeValidator(_host)], ...], NoDecode, BeforeValidator(several)
]
ExpandedPath = Annotated[Path, AfterValidator(_expanded)]
