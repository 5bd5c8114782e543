"""The flags that select a log: some of ``foldmq serve``, and a few more."""

import functools
import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar

import typer

from cli.logs import next_commands
from cli.program.help_pages import HELP_ALL, help_all_parameter
from cli.settings.log_settings import LogSettings
from cli.settings.setting_flags import metavar_of
from cli.settings.setting_sources import flag_of

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

_FROM_SETTINGS = [
    name
    for name in LogSettings.model_fields
    if name in ("data_dir", "encryption_key_file") or name.startswith("nats_")
]
_HELP = {
    "data_dir": "Data directory of the broker, running or not. [default: foldmq-data]",
    "nats_url": "NATS server with the log. Default: the embedded server of --data-dir.",
}
_LOG = "Which log"
_BROKER = "Which broker"
"""Sections of the help page."""
_OTHERS = (
    ("config", Path | None, ("--config",), "FILE", "TOML file with the broker's settings."),
    ("node", str | None, ("--node",), "ID", "Node of the log, if there are several."),
    ("stream", str | None, ("--stream",), "NAME", "Stream of the log, if it has a different name."),
)
_VERBOSE = "Print where the log is read."
_LIVE = {
    "data_dir": "Data directory of the broker. [default: foldmq-data]",
    "nats_url": "NATS server of the broker. Default: the embedded server of --data-dir.",
    "node": "Node or log of the broker, if there are several.",
    "verbose": "Print which broker is queried.",
}
"""Help texts that differ for commands that query a running broker."""


@dataclass(frozen=True, slots=True)
class SourceFlags:
    """The log to read, as selected by flags."""

    settings: dict[str, object] = field(default_factory=dict)
    config: Path | None = None
    node: str | None = None
    stream: str | None = None
    verbose: bool = False

    def over(self, other: "SourceFlags") -> "SourceFlags":
        """Return these flags, with missing ones taken from another set."""
        return SourceFlags(
            {**other.settings, **self.settings},
            self.config or other.config,
            self.node or other.node,
            self.stream or other.stream,
            self.verbose or other.verbose,
        )


def commands_for(data_dir: Path, key_file: Path | None = None) -> next_commands.NextCommands:
    """Return what completes commands for a data directory; ``key_file``: an encrypted one."""
    key = {} if key_file is None else {"encryption_key_file": key_file}
    return next_commands.NextCommands(SourceFlags({"data_dir": data_dir, **key}))


def with_source_flags(
    command: Callable[..., None], *, verbose: str = _VERBOSE
) -> Callable[..., None]:
    """Add the flags to ``command``, whose first parameter is a SourceFlags.

    ``verbose`` is the help text of that flag.
    """
    return _with_flags(command, _LOG, _HELP, _OTHERS, verbose)


def with_broker_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Add the flags to a command that queries a running broker: without --stream."""
    others = [
        (key, kind, decls, metavar, _LIVE.get(key, text))
        for key, kind, decls, metavar, text in _OTHERS
        if key != "stream"
    ]
    return _with_flags(command, _BROKER, _LIVE, others, _LIVE["verbose"])


def _with_flags(
    command: Callable[..., None],
    section: str,
    helps: Mapping[str, str],
    others: Iterable[tuple[str, object, tuple[str, ...], str, str]],
    verbose_help: str,
) -> Callable[..., None]:
    def run(**values: Any) -> None:
        settings = {key: values.pop(key) for key in _FROM_SETTINGS}
        del values[HELP_ALL]
        source = SourceFlags(
            {key: value for key, value in settings.items() if value is not None},
            config=values.pop("config"),
            node=values.pop("node"),
            stream=values.pop("stream", None),
            verbose=values.pop("verbose"),
        )
        next_commands.select(source)
        command(source, **values)

    own = list(inspect.signature(command).parameters.values())[1:]
    parameters = [flag.replace(kind=inspect.Parameter.KEYWORD_ONLY) for flag in own]
    for key in _FROM_SETTINGS:
        field = LogSettings.model_fields[key]
        # The other addresses of a cluster's servers need not be known here.
        metavar = "URL" if key == "nats_url" else metavar_of(key, field)
        text = helps.get(key, field.description or "")
        parameters.append(_parameter(key, str | None, (flag_of(key),), metavar, text, section))
    parameters += [_parameter(*other, section) for other in others]
    verbose = _parameter("verbose", bool, ("-v", "--verbose"), None, verbose_help, section)
    parameters.append(verbose.replace(default=False))
    parameters.append(
        help_all_parameter("Also show the flags for an external NATS server and an encrypted log.")
    )
    # typer builds its command from the signature and the annotations.
    made: Any = functools.wraps(command)(run)
    made.__signature__ = inspect.Signature(parameters)
    made.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    wrapped: Callable[..., None] = made
    return wrapped


def _parameter(
    key: str, kind: object, decls: tuple[str, ...], metavar: str | None, text: str, section: str
) -> inspect.Parameter:
    option = typer.Option(
        *decls,
        help=text,
        show_default=False,
        metavar=metavar,
        rich_help_panel=section,
        hidden=key in _FROM_SETTINGS and key not in _HELP,
    )
    return inspect.Parameter(
        key, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option]
    )


def run_to_end(
    command: Callable[_Parameters, Coroutine[Any, Any, _Result]],
) -> Callable[_Parameters, _Result]:
    """Return a command that runs a coroutine function in an event loop of its own."""

    @functools.wraps(command)
    def run(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        import asyncio  # not before: a help page needs none

        return asyncio.run(command(*args, **kwargs))

    return run
