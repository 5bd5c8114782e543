"""The sources of settings: flags, environment and TOML file, with the names that each uses."""

import difflib
import json
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

from eventstore.display import escaped
from eventstore.home_paths import NoHome, expand_home
from protocol.errors import FoldmqError

PREFIX = "FOLDMQ_"
CONFIG_VARIABLE = "FOLDMQ_CONFIG"
# Variables that are not settings: of the TOML file, of eventstore.server.process, and of foldmq pub
# and sub.
OTHER_VARIABLES = (
    CONFIG_VARIABLE,
    "FOLDMQ_COMPILE",
    "FOLDMQ_NATS_SERVER",
    "FOLDMQ_PASSWORD",
    "FOLDMQ_PLAIN",
    "FOLDMQ_TO_URL",
    "FOLDMQ_URL",
)
# Kubernetes sets these in each pod of a namespace, for each service named foldmq or foldmq-NAME.
# Only the value tells FOLDMQ_WEB_PORT of a service "foldmq-web" from a setting that does not exist.
_SERVICE_LINK = re.compile(
    r"FOLDMQ_([A-Z0-9_]+_)?"
    r"(SERVICE_HOST=.*|SERVICE_PORT(_[A-Z0-9_]+)?=\d*|PORT=(tcp|udp|sctp)://.*"
    r"|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?=.*)",
    re.DOTALL,
)

TABLES: Final = ("sink", "connection")
"""Settings that are tables with names of the operator's: ``[sink.NAME]`` in the TOML file only."""


class ConfigError(FoldmqError):
    """Settings are unknown, have invalid values, or contradict each other.

    Its ``args`` are all problems: one line for each, with the remedy.
    """

    exit_code = 78  # EX_CONFIG of sysexits.h, as in eventstore.errors


class UnknownSettingError(ConfigError):
    """A name in the environment or in a TOML file is not that of a setting."""


class Layer(NamedTuple):
    """One source of settings: its values, and their names in that source."""

    values: Mapping[str, object]
    kind: Literal["flag", "environment", "file"]
    where: str = ""
    tables: Mapping[str, Mapping[str, object]] = MappingProxyType({})
    """The tables of a file, by their kind and name."""

    def shown(self, name: str) -> str:
        """Return a name as the operator wrote it."""
        if self.kind == "flag":
            return flag_of(name)
        return PREFIX + name.upper() if self.kind == "environment" else f"{self.where}: {name}"


def flag_of(name: str) -> str:
    """Return the command line flag of a setting."""
    return "--" + name.replace("_", "-")


def read_layers(
    flags: Mapping[str, object],
    environment: Mapping[str, str],
    config: Path | None,
    names: Collection[str],
    unknown: list[str] | None = None,
) -> list[Layer]:
    """Return the sources of settings, in descending order of precedence.

    ``config`` or ``FOLDMQ_CONFIG`` names the TOML file, ``names`` are those of all settings.
    A line for each unknown one is added to ``unknown``; without it, UnknownSettingError is raised.
    Raises ConfigError for a file that cannot be read.
    """
    problems: list[str] = []
    if config is None and environment.get(CONFIG_VARIABLE):
        config = Path(environment[CONFIG_VARIABLE])
    layers = [
        Layer(flags, "flag"),
        Layer(_from_environment(environment, names, problems), "environment"),
        *([_file_layer(config, names, problems)] if config else []),
    ]
    if unknown is not None:
        unknown += problems
    elif problems:
        raise UnknownSettingError(*problems)
    return layers


def _file_layer(path: Path, names: Collection[str], problems: list[str]) -> Layer:
    values = _from_file(path, {*names, *TABLES}, problems)
    tables: dict[str, Mapping[str, object]] = {}
    for kind in TABLES:
        table = values.pop(kind, {})
        if isinstance(table, dict) and all(isinstance(each, dict) for each in table.values()):
            tables[kind] = table
        else:
            problems.append(f"{path}: {kind}: must be tables, such as [{kind}.NAME]")
    return Layer(values, "file", str(path), tables=tables)


def merge_layers(layers: Iterable[Layer]) -> dict[str, Any]:
    """Return the settings of all sources."""
    values: dict[str, Any] = {}
    for layer in reversed([*layers]):
        values.update(layer.values)
    return values


def _from_environment(
    environment: Mapping[str, str], names: Collection[str], problems: list[str]
) -> dict[str, object]:
    values: dict[str, object] = {}
    for variable, value in environment.items():
        if not (value and variable.startswith(PREFIX)) or variable in OTHER_VARIABLES:
            continue
        name = variable.removeprefix(PREFIX).lower()
        if name in names and variable.isupper():
            values[name] = value
        elif not _SERVICE_LINK.fullmatch(f"{variable}={value}"):
            variables = [PREFIX + setting.upper() for setting in names]
            problems.append(
                f"environment: unknown setting {json.dumps(variable)}"
                + _nearest(variable, [*variables, *OTHER_VARIABLES], 0.8)
            )
    return values


def read_text(path: Path) -> str:
    """Return the text of a file, without a byte order mark; raises ConfigError."""
    try:
        return expand_home(path).read_text("utf-8-sig")
    except NoHome as error:
        raise ConfigError(str(error)) from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text") from None


def _from_file(path: Path, names: Collection[str], problems: list[str]) -> dict[str, object]:
    import tomllib

    try:
        values = tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not TOML: {escaped(str(error))}") from None
    except RecursionError:
        raise ConfigError(f"{path}: not TOML: nested too deeply") from None
    except ValueError:  # a number too long for Python
        raise ConfigError(f"{path}: not TOML: a number is too long") from None
    unknown = [name for name in values if name not in names]
    problems += [
        f"{path}: unknown setting {json.dumps(name)}{_nearest(name, names)}" for name in unknown
    ]
    return {name: value for name, value in values.items() if name not in unknown}


def _nearest(name: str, candidates: Iterable[str], cutoff: float = 0.6) -> str:
    """Return a suggestion; names with a common prefix are alike from a higher ``cutoff`` on."""
    spelled = {candidate.casefold(): candidate for candidate in candidates}
    folded = name.casefold().replace("-", "_")
    for close in difflib.get_close_matches(folded, spelled, n=1, cutoff=cutoff):
        return f' (did you mean "{spelled[close]}"?)'
    return ""
