"""The settings of destinations of the outbox: the tables ``[sink.NAME]`` of the TOML file."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError

from cli.common.units import seconds
from cli.settings.setting_sources import ConfigError
from cli.settings.setting_types import ExpandedPath, Seconds, SettingsGroup, Size, allowed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cli.settings.setting_sources import Layer
    from cli.settings.settings import Settings

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MOST_SINKS, _MOST_FILTERS, _LONGEST_FILTER = 64, 64, 1024
_MIB: Final = 2**20


def _url(url: str) -> str:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise ValueError("must be a URL, such as https://host/path") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be a URL that begins with https:// or http://")
    if parts.username or parts.password:
        raise ValueError("must not contain a password: use token_file")
    return url


def check_filters(filters: tuple[str, ...]) -> tuple[str, ...]:
    """Return the filters; raises ValueError unless the log may have such messages."""
    # The help page of serve needs no rules of MQTT.
    from protocol.mqtt.topics import is_reserved_filter, validate_topic_filter

    for each in filters:
        validate_topic_filter(each)
        if len(each) > _LONGEST_FILTER:
            raise ValueError(f"a filter may have at most {_LONGEST_FILTER} characters")
        if each.startswith(("$share/", "$SYS")) or is_reserved_filter(each):
            raise ValueError(f"{each}: the log has no such messages")
    return filters


def _retry(value: object) -> object:
    """Return base and maximum of the pauses, from a text such as ``1s 5m``."""
    if not isinstance(value, str):
        return value
    pauses = tuple(seconds(part) for part in value.split())
    if len(pauses) != 2 or not all(isinstance(each, float) for each in pauses):
        raise ValueError("must be two times, such as 1s 5m")
    base, most = pauses
    if not 0.01 <= float(base) <= float(most) <= 3600:  # type: ignore[arg-type]  # both are floats
        raise ValueError("must be two times, the first at least 10ms, the second at most 1h")
    return pauses


class DestinationSettings(SettingsGroup):
    """What all destinations of the outbox have. Sizes in bytes, times in seconds."""

    begin: Literal["now", "oldest"] = Field(default="now", alias="from")
    max_behind: Seconds = Field(default=0.0, ge=0)
    max_behind_bytes: Size = Field(default=0, ge=0)
    when_full: Literal["skip", "wait"] = "skip"


class SinkSettings(DestinationSettings):
    """A destination that gets messages over HTTP."""

    kind: Literal["http"]
    url: Annotated[str, AfterValidator(_url)]
    filters: Annotated[
        tuple[str, ...],
        Field(min_length=1, max_length=_MOST_FILTERS),
        AfterValidator(check_filters),
    ]
    user: str | None = Field(default=None, min_length=1, max_length=256)
    format: Literal["batch", "structured", "binary"] = "batch"
    signing_secret_file: ExpandedPath | None = None
    token_file: ExpandedPath | None = None
    ca_file: ExpandedPath | None = None
    timeout: Seconds = Field(default=30.0, ge=1, le=600)
    batch: int = Field(default=200, ge=1, le=10_000)
    batch_bytes: Size = Field(default=_MIB, ge=1024, le=64 * _MIB)
    batch_wait: Seconds = Field(default=0.005, ge=0, le=60)
    retry: Annotated[tuple[float, float], BeforeValidator(_retry)] = (1.0, 300.0)

    @property
    def digest(self) -> str:
        """The digest of the settings that determine which messages are due."""
        from outbox.selection import selection_digest

        return selection_digest(self.kind, self.filters, self.user)


def read_sinks(layers: list[Layer], problems: list[str]) -> dict[str, SinkSettings]:
    """Return the destinations by name; a line for each problem is added to ``problems``."""
    sinks: dict[str, SinkSettings] = {}
    for layer in layers:
        for name, table in layer.tables.get("sink", {}).items():
            where = f"{layer.where}: sink.{name}"
            if not _NAME.fullmatch(name):
                problems.append(f"{where}: a name has 1 to 64 letters, digits, - and _")
                continue
            try:
                sinks[name] = SinkSettings(**table)  # type: ignore[arg-type]
            except ValidationError as error:
                problems += [setting_error(where, SinkSettings, each) for each in error.errors()]
    if len(sinks) > _MOST_SINKS:
        problems.append(f"there are {len(sinks)} sinks: at most {_MOST_SINKS} are possible")
    return sinks


def setting_error(where: str, group: type[DestinationSettings], error: Any) -> str:
    """Return an error of pydantic in one line; ``where`` names the table."""
    name = str(error["loc"][0]) if error["loc"] else ""
    place = f"{where}.{name}"
    if error["type"] == "missing":
        return f"{place}: is required"
    if error["type"] == "extra_forbidden":
        shared = DestinationSettings.model_fields
        keys = [key for key in group.model_fields if key not in shared] + [*shared]
        names = ", ".join(group.model_fields[key].alias or key for key in keys)
        return f"{place}: unknown setting; known: {names}"
    key = "begin" if name == "from" else name
    given = json.dumps(error["input"], default=str)
    if error["type"] in ("too_short", "tuple_type", "too_long"):
        return f"{place} = {given}: must be a list of 1 to {_MOST_FILTERS} topic filters"
    return f"{place} = {given}: {allowed(name, group.model_fields[key], error)}"


def sink_contradictions(settings: Settings) -> Iterator[str]:
    """Yield one message for each contradiction among these settings, with the remedy."""
    for name, sink in settings.sinks.items():
        yield from retention_contradictions(settings, f"sink.{name}", sink)
        if sink.user is not None and settings.permissions is None:
            yield f"sink.{name}.user needs permissions: without them every user may read all topics"


def check_sink_files(settings: Settings) -> None:
    """Raise ConfigError with a line for each file of a destination that cannot be used."""
    from cli.settings.connection_settings import unreadable_files

    problems = [
        problem for name, sink in settings.sinks.items() for problem in _unreadable(name, sink)
    ]
    problems += unreadable_files(settings)
    if problems:
        raise ConfigError(*problems)


def retention_contradictions(
    settings: Settings, where: str, sink: DestinationSettings
) -> Iterator[str]:
    """Yield what contradicts the settings of the log in a table named ``where``."""
    longer = sink.max_behind > settings.keep > 0
    if longer and not (sink.max_behind_bytes or settings.keep_bytes):
        yield (
            f"{where}: max_behind is longer than keep, and needs max_behind_bytes, so that "
            "a destination that is away does not fill the disk"
        )
    if sink.when_full == "wait" and not (settings.keep_bytes or settings.keep_bytes is None):
        yield f'{where}: when_full = "wait" needs keep_bytes: at that size publishers wait'


def _unreadable(name: str, sink: SinkSettings) -> Iterator[str]:
    from outbox.sinks.webhook_signature import BadSecret, read_secrets

    for key in ("signing_secret_file", "token_file", "ca_file"):
        path = getattr(sink, key)
        if path is None:
            continue
        try:
            text = path.read_text("utf-8")
            if key == "signing_secret_file":
                read_secrets(text)
            elif key == "token_file" and not text.strip():
                yield f"sink.{name}.{key} = {path}: is empty"
        except OSError as error:
            yield f"sink.{name}.{key} = {path}: cannot read: {error.strerror}"
        except (BadSecret, UnicodeDecodeError) as error:
            why = error if isinstance(error, BadSecret) else "not UTF-8 text"
            yield f"sink.{name}.{key} = {path}: {why}"


def outbox_request(
    settings: Settings, node: str, local: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return what the process of the outbox reads from its standard input.

    ``local`` is the listener of the broker for messages that come in.
    """
    return {
        "node": node,
        "permissions": str(settings.permissions) if settings.permissions is not None else None,
        "sinks": [
            {"name": name, **sink.model_dump(mode="json", by_alias=True)}
            for name, sink in (*settings.sinks.items(), *settings.connections.items())
        ],
        "local": local,
    }
