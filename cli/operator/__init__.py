"""Commands for a running broker: inspection, ``kick``, ``restart``, ``rm`` and ``purge``."""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from cli.operator import operator_commands
    from cli.operator.bulk_change import operator_name
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "bulk_change": "operator_name",
            "operator_commands": "operator_commands",
        },
    )

__all__ = ["operator_commands", "operator_name"]
