"""The program: its commands, loaded when they are called, its help pages and shell completion."""

from typing import TYPE_CHECKING

from protocol.front_door import front_door

if TYPE_CHECKING:
    from cli.program.command_group import CommandGroup
    from cli.program.command_table import GROUPS, CommandEntry

else:
    __getattr__ = front_door(
        __name__,
        {
            "command_group": "CommandGroup",
            "command_table": "CommandEntry GROUPS",
        },
    )

__all__ = ["GROUPS", "CommandEntry", "CommandGroup"]
