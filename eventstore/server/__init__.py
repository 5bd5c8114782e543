"""The NATS servers that foldmq starts: one for the log, and one for NATS clients.

Loaded lazily: a broker with an external server starts none.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eventstore.server import config_parser, user_blocks
    from eventstore.server.binary import check_binary, find_binary
    from eventstore.server.client_server import ClientServer, access_of
    from eventstore.server.client_tls import TlsFiles
    from eventstore.server.disk_recovery import DiskRecovery
    from eventstore.server.embedded import DEFAULT_MAX_PAYLOAD, EmbeddedServer
    from eventstore.server.process import NatsProcess, Sync, end_process, take_store
    from eventstore.server.user import NatsPermissions, NatsUser, NatsUsersError, SubjectRules
    from eventstore.server.users_file import read_users, readable_by_others

__all__ = [
    "DEFAULT_MAX_PAYLOAD",
    "ClientServer",
    "DiskRecovery",
    "EmbeddedServer",
    "NatsPermissions",
    "NatsProcess",
    "NatsUser",
    "NatsUsersError",
    "SubjectRules",
    "Sync",
    "TlsFiles",
    "access_of",
    "check_binary",
    "config_parser",
    "end_process",
    "find_binary",
    "read_users",
    "readable_by_others",
    "take_store",
    "user_blocks",
]

_MODULE_OF = {
    "check_binary": "binary",
    "find_binary": "binary",
    "ClientServer": "client_server",
    "access_of": "client_server",
    "TlsFiles": "client_tls",
    "DiskRecovery": "disk_recovery",
    "DEFAULT_MAX_PAYLOAD": "embedded",
    "EmbeddedServer": "embedded",
    "NatsProcess": "process",
    "Sync": "process",
    "end_process": "process",
    "take_store": "process",
    "NatsPermissions": "user",
    "NatsUser": "user",
    "NatsUsersError": "user",
    "SubjectRules": "user",
    "read_users": "users_file",
    "readable_by_others": "users_file",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Load the module of a public name at its first use."""
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
