"""The commands that copy logs: ``backup``, ``restore`` and ``salvage``."""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from cli.copies import backup, salvage
else:
    __getattr__ = lazy_exports(__name__, {"backup": "backup", "salvage": "salvage"})

__all__ = ["backup", "salvage"]
