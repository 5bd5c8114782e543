"""``foldmq serve``: builds the broker from the settings and runs it."""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from cli.serve import config_check, process_runner
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "config_check": "config_check",
            "process_runner": "process_runner",
        },
    )

__all__ = ["config_check", "process_runner"]
