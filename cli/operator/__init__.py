"""Commands for a running broker: inspection, ``kick``, ``restart``, ``rm`` and ``purge``."""

from typing import TYPE_CHECKING

from protocol.front_door import front_door

if TYPE_CHECKING:
    from cli.operator import operator_commands
    from cli.operator.bulk_change import by
else:
    __getattr__ = front_door(
        __name__,
        {
            "bulk_change": "by",
            "operator_commands": "operator_commands",
        },
    )

__all__ = ["by", "operator_commands"]
