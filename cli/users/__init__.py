"""``foldmq passwd`` and ``foldmq acl``: the files of users and permissions."""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from cli.users import acl_command, acl_import, line_files, passwd, passwd_command
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "acl_command": "acl_command",
            "acl_import": "acl_import",
            "line_files": "line_files",
            "passwd": "passwd",
            "passwd_command": "passwd_command",
        },
    )

__all__ = ["acl_command", "acl_import", "line_files", "passwd", "passwd_command"]
