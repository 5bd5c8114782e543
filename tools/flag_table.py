"""Writes cli/program/flag_table.py: the flags of ``foldmq serve``, from cli/settings/settings.py.

The model of the settings takes a third of a second to import, which the help page need not.

    python tools/flag_table.py          writes the module
    python tools/flag_table.py --check  exits 1 if the module is not up to date
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args, get_origin

from cli.common.units import Address, seconds, size, size_shown, time_shown
from cli.settings.setting_sources import RENAMED, flag_of
from cli.settings.setting_topics import SETTING_NAMES, TOPIC_OF
from cli.settings.settings import Settings

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "cli" / "program" / "flag_table.py"

HEAD = '''\
"""The flags of the settings: name, kind of its values, metavariable, topic, help.

Written by ``tools/flag_table.py`` from ``cli/settings/settings.py``; do not edit.
"""

# ruff: noqa: E501

from typing import Final

# fmt: off
FLAGS: Final[tuple[tuple[str, str, str | None, str | None, str], ...]] = (
'''
_CONFIG = "TOML file with settings. [env var: FOLDMQ_CONFIG]"


_METAVARS: dict[str, str] = {
    "listen": "HOST:PORT",
    "cluster": "NAME",
    "cluster_listen": "HOST:PORT|off",
    "cluster_advertise": "HOST:PORT|off",
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


def _kind(field: FieldInfo) -> str:
    if isinstance(field.default, tuple) and not isinstance(field.default, Address):
        return "texts"
    return "flag" if field.annotation in (bool, bool | None) else "text"


def page() -> str:
    """Return the text of the module."""
    rows: list[tuple[str, str, str | None, str | None, str]] = [
        ("config", "text", "FILE", TOPIC_OF["config"], _CONFIG)
    ]
    fields = Settings.model_fields
    rows += [
        (
            name,
            _kind(fields[name]),
            _metavar(name, fields[name]),
            TOPIC_OF[name],
            _help(fields[name]),
        )
        for name in SETTING_NAMES
    ]
    rows += [(name, "text", None, None, f"Now {flag_of(new)}.") for name, new in RENAMED.items()]
    return f"{HEAD}{''.join(f'    {row!r},' + chr(10) for row in rows)})\n"


def main(arguments: list[str]) -> int:
    """Write or check the module; the exit code is 1 if it is not up to date."""
    text = page()
    if "--check" in arguments:
        if PAGE.read_text("utf-8") != text:
            sys.stderr.write("cli/program/flag_table.py: run python tools/flag_table.py\n")
            return 1
        return 0
    PAGE.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
