"""The child processes of the broker: their environment, and how they end."""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from cli.children.broker_child import belong_to_the_broker, watch_stdin
    from cli.children.child_environment import environment_for
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "broker_child": "belong_to_the_broker watch_stdin",
            "child_environment": "environment_for",
        },
    )

__all__ = ["belong_to_the_broker", "environment_for", "watch_stdin"]
