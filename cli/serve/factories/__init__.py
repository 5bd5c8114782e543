"""Factories: parts of a node, built from the settings.

Access, limits, listeners, options of the broker, and connections between nodes.
"""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from cli.serve.factories.auth_factory import (
        Access,
        make_permissions,
        pseudonym_key,
        pseudonym_of,
        scram_secret,
        users_digest,
    )
    from cli.serve.factories.edge_factory import (
        PeerSockets,
        cluster_authorities,
        partition_edges,
    )
    from cli.serve.factories.limits_factory import (
        affordable_connections,
        check_open_files,
        limit_options,
    )
    from cli.serve.factories.listener_factory import SOCKETS_VARIABLE, Listeners
    from cli.serve.factories.options_factory import make_bridge, make_options
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "auth_factory": "Access make_permissions pseudonym_key pseudonym_of scram_secret "
            "users_digest",
            "edge_factory": "PeerSockets cluster_authorities partition_edges",
            "limits_factory": "affordable_connections check_open_files limit_options",
            "listener_factory": "SOCKETS_VARIABLE Listeners",
            "options_factory": "make_bridge make_options",
        },
    )

__all__ = [
    "SOCKETS_VARIABLE",
    "Access",
    "Listeners",
    "PeerSockets",
    "affordable_connections",
    "check_open_files",
    "cluster_authorities",
    "limit_options",
    "make_bridge",
    "make_options",
    "make_permissions",
    "partition_edges",
    "pseudonym_key",
    "pseudonym_of",
    "scram_secret",
    "users_digest",
]
