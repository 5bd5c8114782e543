"""The flags of ``foldmq serve``, generated from the settings."""

import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from cli.common import Address, seconds, size
from cli.settings.setting_sources import RENAMED, flag_of
from cli.settings.setting_topics import SETTING_NAMES, TOPIC_OF
from cli.settings.settings import Settings

Serve = Callable[[Path | None, dict[str, object]], None]


def with_settings_flags(serve: Serve) -> Callable[..., None]:
    """Return a command with one flag per setting that calls ``serve`` with config file and flags.

    Values stay text here: ``cli.settings.settings`` parses the values of all sources alike.
    """

    def run(**values: Any) -> None:
        config = values.pop("config")
        serve(config, {name: value for name, value in values.items() if _given(value)})

    parameters = [
        _parameter(
            "config",
            Path | None,
            "--config",
            "FILE",
            "TOML file with settings. [env var: FOLDMQ_CONFIG]",
        )
    ]
    order = {name: number for number, name in enumerate(SETTING_NAMES)}
    fields = Settings.model_fields.items()
    for name, field in sorted(fields, key=lambda item: order.get(item[0], len(order))):
        kind: object = str | None
        decl = flag_of(name)
        if isinstance(field.default, tuple) and not isinstance(field.default, Address):
            kind = list[str] | None
        elif field.annotation in (bool, bool | None):
            kind = bool | None
            decl = f"{decl}/--no-{decl[2:]}"
        parameters.append(_parameter(name, kind, decl, _metavar(name, field), _help(field)))
    for name, new in RENAMED.items():
        option = typer.Option(flag_of(name), help=f"Now {flag_of(new)}.", hidden=True)
        parameters.append(_option(name, str | None, option))
    # typer builds its command from the signature and the annotations.
    command: Any = functools.wraps(serve)(run)
    command.__signature__ = inspect.Signature(parameters)
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    made: Callable[..., None] = command
    return made


def _given(value: object) -> bool:
    return value is not None and value != []


def _parameter(
    name: str, kind: object, decl: str, metavar: str | None, text: str
) -> inspect.Parameter:
    topic = TOPIC_OF.get(name, "Other")
    option = typer.Option(
        decl, help=text, show_default=False, metavar=metavar, rich_help_panel=topic
    )
    return _option(name, kind, option)


def _option(name: str, kind: object, option: object) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option]
    )


_METAVARS: dict[str, str] = {
    "listen": "HOST:PORT",
    "unix_mode": "MODE",
    "ws_path": "PATH",
    "ws_origins": "ORIGIN",
    "proxy_from": "NETWORK",
    "jwt_audience": "TEXT",
    "data_dir": "DIR",
    "nats_url": "URL,...",
    "nats_domain": "NAME",
    "nats_listen": "HOST:PORT|off",
    "bridge_always": "FILTER",
    "bridge_client_headers": "NAME",
    "bridge_filters": "FILTER",
    "bridge_map": "TOPIC=SUBJECT",
    "bridge_user_map": "USER=SUBJECT",
    "bridge_url": "URL",
    "sync": "always|TIME",
    "metrics": "HOST:PORT|off",
    "metrics_hosts": "NAME",
    "web": "HOST:PORT|off",
}
_METAVARS_BY_TYPE: dict[object, str] = {
    str: "TEXT",
    str | None: "TEXT",
    int: "NUMBER",
    int | None: "NUMBER",
    float: "NUMBER",
}


def _is_size(field: FieldInfo) -> bool:
    return any(getattr(check, "func", None) is size for check in field.metadata)


def _metavar(name: str, field: FieldInfo) -> str | None:
    if _is_size(field):
        return "SIZE"
    if any(getattr(check, "func", None) is seconds for check in field.metadata):
        return "TIME"
    if field.annotation in (bool, bool | None):
        return None
    if name in _METAVARS:
        return _METAVARS[name]
    if get_origin(field.annotation) is Literal:
        return "|".join(get_args(field.annotation))
    return _METAVARS_BY_TYPE.get(field.annotation, "FILE")


def _help(field: FieldInfo) -> str:
    default: object = field.default
    text = field.description or ""
    if default in (None, ()) or isinstance(default, bool):
        return text
    if _is_size(field) and isinstance(default, int):
        default = size_shown(default)
    elif isinstance(default, tuple) and not isinstance(default, Address):
        default = ", ".join(str(item) for item in default)
    elif isinstance(default, float):
        default = time_shown(default)
    return f"{text} [default: {default}]"


_SIZES = {" GiB": 2**30, " MiB": 2**20, " KiB": 2**10, " B": 1}
_TIMES = {"d": 86_400, "h": 3600, "m": 60, "s": 1, "ms": 0.001}


def size_shown(count: int) -> str:
    """Return a default size as written in settings; 0 is shown as none."""
    return _in_units(count, _SIZES) if count else "none"


def time_shown(seconds: float) -> str:
    """Return a default time as written in settings; 0 is shown as never."""
    return _in_units(seconds, _TIMES) if seconds else "never"


def _in_units(value: float, units: Mapping[str, float]) -> str:
    """Return a value in the largest unit that divides it, or else in the smallest unit."""
    whole = (unit for unit, factor in units.items() if value % factor == 0)
    unit = next(whole, [*units][-1])
    return f"{value / units[unit]:.15g}{unit}"
