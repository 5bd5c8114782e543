"""The MQTT clients ``foldmq pub`` and ``foldmq sub``."""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from cli.clients import (
        client_commands,
        client_errors,
        client_options,
        client_session,
        connection,
        message_text,
        option_values,
        pub,
        sub,
    )
    from cli.clients.client_errors import BadArgumentError
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "client_commands": "client_commands",
            "client_errors": "BadArgumentError client_errors",
            "client_options": "client_options",
            "client_session": "client_session",
            "connection": "connection",
            "message_text": "message_text",
            "option_values": "option_values",
            "pub": "pub",
            "sub": "sub",
        },
    )

__all__ = [
    "BadArgumentError",
    "client_commands",
    "client_errors",
    "client_options",
    "client_session",
    "connection",
    "message_text",
    "option_values",
    "pub",
    "sub",
]
