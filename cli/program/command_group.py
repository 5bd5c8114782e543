"""The root of the program: knows its commands by name and loads the one that is called."""

from __future__ import annotations

import difflib
from importlib import import_module
from typing import Any

import typer

from cli.program.command_table import GROUPS, find_command
from cli.program.help_pages import PageGroup, Program


class CommandGroup(PageGroup):
    """A group whose commands are those of ``command_table``."""

    def list_commands(self, ctx: object) -> list[str]:
        """Return the names of the commands in the order of their use."""
        del ctx
        return [entry.name for _, entries in GROUPS for entry in entries]

    def get_command(self, ctx: object, cmd_name: str) -> Any:
        """Return a command, loaded from its module; None if there is none with that name."""
        del ctx
        entry = find_command(cmd_name)
        if entry is None:
            return None
        if cmd_name not in self.commands:
            program = Program()
            program.callback()(_nothing)  # makes a group of a program with one command
            found = import_module(entry.module)
            getattr(found, f"register_{entry.module.rpartition('.')[2]}")(program)
            loaded: Any = typer.main.get_command(program)
            self.commands[cmd_name] = loaded.commands[cmd_name]
        return self.commands[cmd_name]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the arguments name; an unknown name gets suggestions."""
        if args and not args[0].startswith("-") and find_command(args[0]) is None:
            near = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            advice = f" Did you mean {near[0]!r}?" if near else ""
            ctx.fail(f"No such command {args[0]!r}.{advice}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the groups of commands."""
        del ctx
        width = max(len(entry.name) for _, entries in GROUPS for entry in entries)
        for title, entries in GROUPS:
            with formatter.section(title):
                formatter.write_dl([(entry.name.ljust(width), entry.help) for entry in entries])


def _nothing() -> None:
    pass
