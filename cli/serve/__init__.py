"""``foldmq serve``: builds the broker from the settings and runs it."""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from cli.serve import auth_factory, config_check, service
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "auth_factory": "auth_factory",
            "config_check": "config_check",
            "service": "service",
        },
    )

__all__ = ["auth_factory", "config_check", "service"]
