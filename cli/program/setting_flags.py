"""The flags of the settings, from a table: ``foldmq serve --help`` loads no model of them."""

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.program.flag_table import FLAGS
from cli.program.help_pages import HELP_ALL, help_all_parameter
from cli.settings.setting_topics import USUAL_SETTINGS

Serve = Callable[[Path | None, dict[str, object]], None]

_KINDS = {"text": str | None, "texts": list[str] | None, "flag": bool | None}


def with_settings_flags(serve: Serve) -> Callable[..., None]:
    """Return a command with one flag per setting that calls ``serve`` with config file and flags.

    Values stay text here: ``cli.settings.settings`` parses the values of all sources alike.
    """

    def run(**values: Any) -> None:
        config = values.pop("config")
        del values[HELP_ALL]
        serve(config, {name: value for name, value in values.items() if _given(value)})

    parameters = [_parameter(*flag) for flag in FLAGS]
    known = sum(topic is not None for _, _, _, topic, _ in FLAGS)
    parameters.append(help_all_parameter(f"Show all {known} flags and exit."))
    # typer builds its command from the signature and the annotations.
    command: Any = functools.wraps(serve)(run)
    command.__signature__ = inspect.Signature(parameters)
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    made: Callable[..., None] = command
    return made


def _given(value: object) -> bool:
    return value is not None and value != []


def _parameter(
    name: str, kind: str, metavar: str | None, topic: str | None, text: str
) -> inspect.Parameter:
    """Return the parameter of a flag; one without a topic is on no help page."""
    decl = "--" + name.replace("_", "-")
    option = typer.Option(
        f"{decl}/--no-{decl[2:]}" if kind == "flag" else decl,
        help=text,
        show_default=False,
        metavar=metavar,
        rich_help_panel=topic,
        hidden=name not in USUAL_SETTINGS,
    )
    of = Path | None if name == "config" else _KINDS[kind]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[of, option]
    )
