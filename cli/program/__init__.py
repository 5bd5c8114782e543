"""The program: its commands, loaded when they are called, its help pages and shell completion."""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from cli.program import argv_secrets
    from cli.program.command_group import CommandGroup
    from cli.program.command_table import GROUPS, HIDDEN, CommandEntry
    from cli.program.deferred_import import defer
    from cli.program.help_pages import HELP_ALL, PageCommand, Program, help_all_parameter
    from cli.program.process_end import end_process
    from cli.program.setting_flags import with_settings_flags
    from cli.program.version_command import show_version
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "argv_secrets": "argv_secrets",
            "command_group": "CommandGroup",
            "command_table": "CommandEntry GROUPS HIDDEN",
            "deferred_import": "defer",
            "help_pages": "HELP_ALL PageCommand Program help_all_parameter",
            "process_end": "end_process",
            "setting_flags": "with_settings_flags",
            "version_command": "show_version",
        },
    )

__all__ = [
    "GROUPS",
    "HELP_ALL",
    "HIDDEN",
    "CommandEntry",
    "CommandGroup",
    "PageCommand",
    "Program",
    "argv_secrets",
    "defer",
    "end_process",
    "help_all_parameter",
    "show_version",
    "with_settings_flags",
]
