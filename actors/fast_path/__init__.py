"""The fast path: packets of all connections, decided as columns in one pass of a turn."""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from actors.fast_path.fan_out import fail_turn
    from actors.fast_path.fast_path import FastPath, is_bulk
else:
    __getattr__ = lazy_exports(__name__, {"fan_out": "fail_turn", "fast_path": "FastPath is_bulk"})

__all__ = ["FastPath", "fail_turn", "is_bulk"]
