"""Programs of typer whose help pages have sections, and headings in bold on a terminal.

The section of a flag is its ``rich_help_panel``; flags without one are options.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup

from cli.common import has_colours, painted
from cli.program.plain_values import convert_plainly

if TYPE_CHECKING:
    from collections.abc import Callable

_OPTIONS = "Options"
_HEADING = re.compile(r"(?m)^(Usage:|[A-Z][^\n]*:$)")


def in_sections(command: Any, ctx: Any, formatter: Any) -> None:
    """Write arguments and flags of a command, each section in the order of its first flag."""
    arguments: list[tuple[str, str]] = []
    sections: dict[str, list[tuple[str, str]]] = {_OPTIONS: []}
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is None:
            continue
        if parameter.param_type_name == "argument":
            arguments.append(record)
        else:
            title = getattr(parameter, "rich_help_panel", None) or _OPTIONS
            sections.setdefault(title, []).append(record)
    for title, records in (("Arguments", arguments), *sections.items()):
        if records:
            with formatter.section(title):
                formatter.write_dl(records)


def with_bold_headings(page: str) -> str:
    """Return a help page with its headings in bold, if stdout shows colours."""
    if not has_colours(sys.stdout):
        return page
    return _HEADING.sub(lambda found: painted(found[0], "bold", sys.stdout), page)


class PageCommand(TyperCommand):
    """A command whose help page has sections."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the flags."""
        in_sections(self, ctx, formatter)

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters."""
        parameters: list[Any] = super().get_params(ctx)
        convert_plainly(parameters)
        return parameters

    def get_help(self, ctx: Any) -> str:
        """Return the help page."""
        return with_bold_headings(super().get_help(ctx))


class PageGroup(TyperGroup):
    """A group of commands whose help page has sections."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the flags, then the commands."""
        in_sections(self, ctx, formatter)
        self.format_commands(ctx, formatter)

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters."""
        parameters: list[Any] = super().get_params(ctx)
        convert_plainly(parameters)
        return parameters

    def get_help(self, ctx: Any) -> str:
        """Return the help page."""
        return with_bold_headings(super().get_help(ctx))


class Program(typer.Typer):
    """A typer program with such help pages."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            **{
                "cls": PageGroup,
                "rich_markup_mode": None,
                "add_completion": False,
                "pretty_exceptions_enable": False,
                **options,
            }
        )

    def command(  # type: ignore[override] # the options are those of typer
        self, name: str | None = None, **options: Any
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Return a decorator that adds a command."""
        return super().command(name, **{"cls": PageCommand, **options})
