"""``foldmq passwd`` and ``foldmq acl``: the files of users and permissions."""

from typing import TYPE_CHECKING

from protocol.front_door import front_door

if TYPE_CHECKING:
    from cli.users import acl_command, line_files, passwd_command
else:
    __getattr__ = front_door(
        __name__,
        {
            "acl_command": "acl_command",
            "line_files": "line_files",
            "passwd_command": "passwd_command",
        },
    )

__all__ = ["acl_command", "line_files", "passwd_command"]
