"""``foldmq serve``: builds the broker from the settings and runs it."""

from typing import TYPE_CHECKING

from protocol.front_door import front_door

if TYPE_CHECKING:
    from cli.serve import auth_factory, config_check, service
else:
    __getattr__ = front_door(
        __name__,
        {
            "auth_factory": "auth_factory",
            "config_check": "config_check",
            "service": "service",
        },
    )

__all__ = ["auth_factory", "config_check", "service"]
