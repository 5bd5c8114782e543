"""The commands of foldmq in the order of their use, and the module that defines each.

``foldmq --help`` prints this table and loads no module of it. A module M has a function
``register_M`` that adds its commands to a typer program; only the command that is called is loaded.
"""

import difflib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from itertools import chain
from typing import Any, NamedTuple

import typer

from cli.program.help_pages import PageGroup, Program


class CommandGroup(PageGroup):
    """A group whose commands are those of ``command_table``."""

    def list_commands(self, ctx: object) -> list[str]:
        """Return the names of the commands in the order of their use."""
        del ctx
        return [entry.name for entries in GROUPS.values() for entry in entries]

    def get_command(self, ctx: object, cmd_name: str) -> Any:
        """Return a command, loaded from its module; None if there is none with that name."""
        del ctx
        entry = find_command(cmd_name)
        return None if entry is None else load_commands(entry.module)[cmd_name]

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
        width = max(len(entry.name) for entries in GROUPS.values() for entry in entries)
        for title, entries in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(entry.name.ljust(width), entry.help) for entry in entries])


@cache
def load_commands(module: str) -> dict[str, Any]:
    """Return the commands that a module defines."""
    program = Program()
    program.callback()(_nothing)  # makes a group of a program with one command
    getattr(import_module(module), f"register_{module.rpartition('.')[2]}")(program)
    group: Any = typer.main.get_command(program)
    commands: dict[str, Any] = group.commands
    return commands


def _nothing() -> None:
    pass


class CommandEntry(NamedTuple):
    """A command."""

    name: str
    module: str
    help: str
    """One line for ``foldmq --help``."""


_BROKER = "cli.commands.operator_commands"
_LOG = "cli.commands.log_commands"
_DIAGNOSIS = "cli.commands.diagnosis_commands"
_SERVE = "cli.serve.serve_command"
_CLIENTS = "cli.clients.client_commands"
_SPARK = "cli.spark.spark_commands"
_COMPLETION = "cli.program.completion"

GROUPS: Mapping[str, Sequence[CommandEntry]] = {
    "Run a broker": [
        CommandEntry("serve", _SERVE, "Run the broker."),
        CommandEntry("config", _SERVE, "Check the configuration."),
        CommandEntry("passwd", "cli.users.passwd_command", "Manage the users of a password file."),
        CommandEntry(
            "acl", "cli.users.acl_command", "Check the permissions of a client, or import rules."
        ),
        CommandEntry(
            "import",
            "cli.migration.import_command",
            "Take over the settings and state of another broker.",
        ),
    ],
    "Send and receive": [
        CommandEntry("pub", _CLIENTS, "Publish messages."),
        CommandEntry("sub", _CLIENTS, "Subscribe and print the messages."),
    ],
    "Inspect a running broker": [
        CommandEntry("status", _DIAGNOSIS, "Show whether the broker is healthy."),
        CommandEntry("doctor", _DIAGNOSIS, "Find problems, their causes, and what to do."),
        CommandEntry("reload", _BROKER, "Make a running broker read its settings again."),
        CommandEntry(
            "erase",
            _BROKER,
            "Erase the contents of personal topics, or the name of a client or user, for ever.",
        ),
        CommandEntry(
            "confirm-clock",
            _BROKER,
            "Say that the clock is right: the time off before the last start counts.",
        ),
        CommandEntry("top", "cli.top.top_commands", "Monitor a running broker."),
        CommandEntry("sessions", _BROKER, "List, show, disconnect and remove sessions."),
        CommandEntry("subscriptions", _BROKER, "Show how a message on a topic would be delivered."),
        CommandEntry("topics", _BROKER, "List the topics that messages are published on."),
        CommandEntry("retained", _BROKER, "List, print and remove retained messages."),
        CommandEntry("actors", _BROKER, "Inspect the actors of a running broker."),
        CommandEntry(
            "outbox",
            "cli.commands.outbox_commands",
            "List and change destinations that get messages from the log.",
        ),
        CommandEntry("nodes", _BROKER, "List the nodes of a cluster."),
        CommandEntry("web", "cli.web.pages.web_command", "Serve the web page of a running broker."),
        CommandEntry("web-token", "cli.web.token_command", "Manage the tokens of the web page."),
    ],
    "Read the event log": [
        CommandEntry("why", _LOG, "Explain what happened to a message."),
        CommandEntry("history", _LOG, "List the messages of the past on matching topics."),
        CommandEntry("log", _LOG, "List the events of the log."),
        CommandEntry("replay", _LOG, "Show the state of the broker at any point in time."),
        CommandEntry(
            "diff", _LOG, "Show the differences between the states at two points in time."
        ),
        CommandEntry(
            "mcp", "cli.mcp.mcp_command", "Let a language model ask a running broker and its log."
        ),
        CommandEntry("spark", _SPARK, "Run Spark jobs on the log."),
    ],
    "Check and repair": [
        CommandEntry("verify", _LOG, "Compare the running broker with its log."),
        CommandEntry("audit", _SPARK, "Check the guarantees of MQTT over the whole log."),
        CommandEntry("backup", _LOG, "Back up the log of a broker, running or not."),
        CommandEntry("restore", _LOG, "Restore a backup into a new data directory."),
        CommandEntry("salvage", _LOG, "Copy what can be proven of a damaged log."),
    ],
    "Other": [
        CommandEntry("pseudonym", _SERVE, "Show the pseudonym of a client identifier."),
        CommandEntry("completion", _COMPLETION, "Print the completion script of a shell."),
        CommandEntry(
            "version",
            "cli.program.version_command",
            "Show the version, Python, the NATS server, and whether modules are compiled.",
        ),
    ],
}
"""The groups of ``foldmq --help``, with their commands."""

HIDDEN = (CommandEntry("complete", _COMPLETION, "Print the completions of the last word."),)
"""Commands that shells call."""


def find_command(name: str) -> CommandEntry | None:
    """Return the command with a name, or None."""
    entries = chain(*GROUPS.values(), HIDDEN)
    return next((entry for entry in entries if entry.name == name), None)
