"""Programs of typer whose help pages have sections, and headings in bold on a terminal.

The section of a flag is its ``rich_help_panel``; flags without one are options.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from cli.common.colour import has_colours, painted

_OPTIONS = "Options"
_ALL = "foldmq.help_all"
HELP_ALL = "help_all"
"""Name of the parameter of --help-all."""
_HEADING = re.compile(r"(?m)^(Usage:|[A-Z][^\n]*:$)")


def in_sections(command: Any, ctx: Any, formatter: Any) -> None:
    """Write arguments and flags of a command, each section in the order of its first flag.

    Hidden flags with a section are rarely used: they are on the page of --help-all only.
    """
    arguments: list[tuple[str, str]] = []
    sections: dict[str, list[tuple[str, str]]] = {_OPTIONS: []}
    for parameter in command.get_params(ctx):
        title = getattr(parameter, "rich_help_panel", None)
        with _shown(parameter, also=title is not None and _ALL in ctx.meta):
            record = parameter.get_help_record(ctx)
        if record is None:
            continue
        if parameter.param_type_name == "argument":
            arguments.append(record)
        else:
            sections.setdefault(title or _OPTIONS, []).append(record)
    for title, records in (("Arguments", arguments), *sections.items()):
        if records:
            with formatter.section(title):
                formatter.write_dl(records)


@contextmanager
def _shown(parameter: Any, *, also: bool) -> Iterator[None]:
    hidden = getattr(parameter, "hidden", False)
    if hidden and also:
        parameter.hidden = False
    try:
        yield
    finally:
        if hidden:
            parameter.hidden = True


def help_all_parameter(text: str) -> inspect.Parameter:
    """Return the flag --help-all, whose page has the rarely used flags too."""
    option = typer.Option(
        "--help-all", help=text, show_default=False, is_eager=True, callback=_print_all
    )
    return inspect.Parameter(
        HELP_ALL, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, option]
    )


def _print_all(ctx: typer.Context, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        typer.echo(ctx.get_help())
        raise typer.Exit


def with_bold_headings(page: str) -> str:
    """Return a help page with its headings in bold, if stdout shows colours."""
    if not has_colours(sys.stdout):
        return page
    return _HEADING.sub(lambda match: painted(match[0], "bold", sys.stdout), page)


class _HelpPage:
    """What commands and groups have in common."""

    def get_help(self, ctx: Any) -> str:
        """Return the help page."""
        return with_bold_headings(super().get_help(ctx))  # type: ignore[misc] # of the command


class PageCommand(_HelpPage, TyperCommand):
    """A command whose help page has sections."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the flags."""
        in_sections(self, ctx, formatter)


class PageGroup(_HelpPage, TyperGroup):
    """A group of commands whose help page has sections."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the flags, then the commands."""
        in_sections(self, ctx, formatter)
        self.format_commands(ctx, formatter)


class Program(typer.Typer):
    """A typer program with such help pages."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            **{
                "cls": PageGroup,
                "rich_markup_mode": None,
                "add_completion": False,
                "pretty_exceptions_enable": False,
                "context_settings": {"help_option_names": ["-h", "--help"]},
                **options,
            }
        )

    def command(  # type: ignore[override] # the options are those of typer
        self, name: str | None = None, **options: Any
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Return a decorator that adds a command."""
        return super().command(name, **{"cls": PageCommand, **options})
