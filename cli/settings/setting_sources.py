"""Loading the settings: flags override the environment, which overrides the TOML file.

Unknown settings are rejected with a suggestion.
"""

import difflib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from cli.settings.settings import (
    CONFIG_VARIABLE,
    OTHER_VARIABLES,
    PREFIX,
    RENAMED,
    ConfigError,
    Settings,
    allowed,
    check_settings,
    flag_of,
)
from eventstore.display import escaped
from eventstore.paths import NoHome, expand_home

# Settings whose values no message shows.
_SECRETS = ("nats_password", "bridge_password")
# Kubernetes sets these in every pod of a namespace with a service named "foldmq".
_SERVICE_LINK = re.compile(r"FOLDMQ_(SERVICE_(HOST|PORT.*)|PORT(_\d+_(TCP|UDP).*)?)")


class _Layer(NamedTuple):
    """One source of settings: its values, and the names that the operator knows them by."""

    values: Mapping[str, object]
    kind: Literal["flag", "environment", "file"]
    where: str = ""
    old: Mapping[str, str] = MappingProxyType({})
    """Old names that were used, by the new ones."""

    def shown(self, name: str) -> str:
        """Return a name as the operator wrote it."""
        name = self.old.get(name, name)
        if self.kind == "flag":
            return flag_of(name)
        return PREFIX + name.upper() if self.kind == "environment" else f"{self.where}: {name}"


def load_settings(
    flags: Mapping[str, object], environment: Mapping[str, str], config: Path | None = None
) -> Settings:
    """Load the settings; ``config`` or ``FOLDMQ_CONFIG`` names the TOML file.

    Raises ConfigError for the first problem: one line with source, name, value and what is allowed.
    """
    if config is None and environment.get(CONFIG_VARIABLE):
        config = Path(environment[CONFIG_VARIABLE])
    layers = [
        _Layer(flags, "flag"),
        _Layer(_from_environment(environment), "environment"),
        *([_Layer(_from_file(config), "file", str(config))] if config else []),
    ]

    layers = [_with_new_names(layer) for layer in layers]

    merged: dict[str, Any] = {}
    for layer in reversed(layers):
        merged.update(layer.values)
    try:
        settings = Settings(**merged)
    except ValidationError as error:
        raise ConfigError(_sentence(error.errors()[0], layers)) from None
    check_settings(settings)
    settings.remember_old_names(
        f"{layer.shown(new)}: this setting is called {new} now"
        for layer in layers
        for new in layer.old
    )
    return settings


def _with_new_names(layer: _Layer) -> _Layer:
    """Return the settings of a source by their new names; raises ConfigError for both."""
    old = {RENAMED[name]: name for name in layer.values if name in RENAMED}
    if not old:
        return layer
    renamed = layer._replace(
        values={RENAMED.get(name, name): value for name, value in layer.values.items()}, old=old
    )
    for new in old:
        if new in layer.values:
            raise ConfigError(
                f"{renamed.shown(new)} and {layer.shown(new)} are the same setting: "
                "remove the first"
            )
    return renamed


def _from_environment(environment: Mapping[str, str]) -> dict[str, object]:
    values: dict[str, object] = {}
    for variable, value in environment.items():
        if not variable.startswith(PREFIX) or variable in OTHER_VARIABLES:
            continue
        name = variable.removeprefix(PREFIX).lower()
        if (name in Settings.model_fields or name in RENAMED) and variable.isupper():
            values[name] = value
        elif not _SERVICE_LINK.fullmatch(variable):
            known = [PREFIX + field.upper() for field in Settings.model_fields]
            raise ConfigError(
                f"environment: unknown setting {json.dumps(variable)}"
                + _nearest(variable, [*known, *OTHER_VARIABLES])
            )
    return values


def _from_file(path: Path) -> dict[str, object]:
    try:
        with expand_home(path).open("rb") as file:
            values = tomllib.load(file)
    except NoHome as error:
        raise ConfigError(str(error)) from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not TOML: {escaped(str(error))}") from None
    except RecursionError:
        raise ConfigError(f"{path}: not TOML: nested too deeply") from None
    except ValueError:  # a number too long for Python
        raise ConfigError(f"{path}: not TOML: a number is too long") from None
    for name in values:
        if name not in Settings.model_fields and name not in RENAMED:
            raise ConfigError(
                f"{path}: unknown setting {json.dumps(name)}"
                + _nearest(name, Settings.model_fields)
            )
    return values


def _nearest(name: str, known: Iterable[str]) -> str:
    spelled = {candidate.casefold(): candidate for candidate in known}
    folded = name.casefold().replace("-", "_")
    for close in difflib.get_close_matches(folded, spelled, n=1, cutoff=0.6):
        return f' (did you mean "{spelled[close]}"?)'
    return ""


def _sentence(error: ErrorDetails, layers: Iterable[_Layer]) -> str:
    name = str(error["loc"][0])
    layer = next(layer for layer in layers if name in layer.values)
    value = "" if name in _SECRETS else " = " + json.dumps(layer.values[name], default=str)
    return f"{layer.shown(name)}{value}: {allowed(name, error)}"
