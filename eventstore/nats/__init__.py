"""Connections to a NATS server, and requests to its JetStream.

``connect`` returns a ``DirectClient``: nats-py's client with a faster path for appends. A
``BatchClient`` transfers messages in batches, a ``RequestClient`` sends requests on one subject.
The modules are loaded lazily: nats-py takes a third of a second.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eventstore.nats.batch_client import BatchClient, encode_hpub, encode_pub
    from eventstore.nats.batch_parser import NatsMessage
    from eventstore.nats.connection import (
        PRIVATE_PREFIX,
        ConnectionOptions,
        check_access,
        check_server,
        check_server_version,
        connect,
        disconnect,
    )
    from eventstore.nats.direct_client import DirectClient
    from eventstore.nats.discovery import LOG_STREAM_PREFIX, list_logs
    from eventstore.nats.jetstream import (
        END_OF_BATCH,
        MAX_WAIT,
        NOT_FOUND,
        NOT_STORED,
        OVER_STREAM_LIMIT,
        REQUEST_SECONDS,
        WRONG_LAST_SEQUENCE,
        ServerWatch,
        api_prefix,
        check_jetstream,
        direct_get_subject,
        get_message,
        publish_expecting,
        purge,
        read_bounds,
        read_info,
        read_next,
        request_stream,
        sending,
        status_of,
    )
    from eventstore.nats.log_stream import (
        LogIdentityMismatch,
        StreamState,
        check_cluster_identity,
        check_stream,
        durability_promise,
        ensure_stream,
        read_partitions,
    )
    from eventstore.nats.node_lock import lock_node
    from eventstore.nats.replication import DEFAULT_REPLICAS, check_replication, in_cluster
    from eventstore.nats.request_client import RequestClient, UnansweredError
    from eventstore.nats.server_urls import split_urls, url_problem, without_secrets

__all__ = [
    "DEFAULT_REPLICAS",
    "END_OF_BATCH",
    "LOG_STREAM_PREFIX",
    "MAX_WAIT",
    "NOT_FOUND",
    "NOT_STORED",
    "OVER_STREAM_LIMIT",
    "PRIVATE_PREFIX",
    "REQUEST_SECONDS",
    "WRONG_LAST_SEQUENCE",
    "BatchClient",
    "ConnectionOptions",
    "DirectClient",
    "LogIdentityMismatch",
    "NatsMessage",
    "RequestClient",
    "ServerWatch",
    "StreamState",
    "UnansweredError",
    "api_prefix",
    "check_access",
    "check_cluster_identity",
    "check_jetstream",
    "check_replication",
    "check_server",
    "check_server_version",
    "check_stream",
    "connect",
    "direct_get_subject",
    "disconnect",
    "durability_promise",
    "encode_hpub",
    "encode_pub",
    "ensure_stream",
    "get_message",
    "in_cluster",
    "list_logs",
    "lock_node",
    "publish_expecting",
    "purge",
    "read_bounds",
    "read_info",
    "read_next",
    "read_partitions",
    "request_stream",
    "sending",
    "split_urls",
    "status_of",
    "url_problem",
    "without_secrets",
]

_MODULE_OF = {
    "BatchClient": "batch_client",
    "encode_hpub": "batch_client",
    "encode_pub": "batch_client",
    "NatsMessage": "batch_parser",
    "PRIVATE_PREFIX": "connection",
    "ConnectionOptions": "connection",
    "check_access": "connection",
    "check_server": "connection",
    "check_server_version": "connection",
    "connect": "connection",
    "disconnect": "connection",
    "DirectClient": "direct_client",
    "LOG_STREAM_PREFIX": "discovery",
    "list_logs": "discovery",
    "END_OF_BATCH": "jetstream",
    "NOT_FOUND": "jetstream",
    "NOT_STORED": "jetstream",
    "OVER_STREAM_LIMIT": "jetstream",
    "MAX_WAIT": "jetstream",
    "REQUEST_SECONDS": "jetstream",
    "ServerWatch": "jetstream",
    "WRONG_LAST_SEQUENCE": "jetstream",
    "api_prefix": "jetstream",
    "check_jetstream": "jetstream",
    "direct_get_subject": "jetstream",
    "get_message": "jetstream",
    "publish_expecting": "jetstream",
    "purge": "jetstream",
    "read_bounds": "jetstream",
    "read_info": "jetstream",
    "read_next": "jetstream",
    "request_stream": "jetstream",
    "sending": "jetstream",
    "status_of": "jetstream",
    "LogIdentityMismatch": "log_stream",
    "read_partitions": "log_stream",
    "StreamState": "log_stream",
    "check_cluster_identity": "log_stream",
    "check_stream": "log_stream",
    "durability_promise": "log_stream",
    "ensure_stream": "log_stream",
    "lock_node": "node_lock",
    "DEFAULT_REPLICAS": "replication",
    "check_replication": "replication",
    "in_cluster": "replication",
    "split_urls": "server_urls",
    "url_problem": "server_urls",
    "without_secrets": "server_urls",
    "RequestClient": "request_client",
    "UnansweredError": "request_client",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Load the module of a public name at its first use."""
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
