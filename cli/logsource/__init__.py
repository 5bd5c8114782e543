"""The log that a command reads: flags, moments, topics; and the log store of ``foldmq serve``."""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from cli.logsource.cluster_keys import check_cluster_key, cluster_key, read_cluster_key
    from cli.logsource.log_failures import IncompleteLogs, LogFailures
    from cli.logsource.log_store import (
        ServerOfClients,
        Store,
        answer_requests,
        bridge_access,
        check_files,
        fit_packet_size,
        nats_tls,
        nats_users,
        open_cluster,
        open_store,
        start_for_clients,
    )
    from cli.logsource.nats_access import external_access
    from cli.logsource.node_logs import (
        check_comparable,
        check_one_log,
        flags_of_session,
        open_logs,
        open_node_logs,
    )
    from cli.logsource.point_resolution import (
        clock_notes,
        cut_off,
        end_at,
        is_between,
        jump_notes,
        parse_point,
        point_at,
        start_at,
        write_clock_notes,
    )
    from cli.logsource.several_logs import log_names, log_of_session
    from cli.logsource.source import (
        find_location,
        index_directory,
        index_path,
        named_stream,
        open_source,
        write_notice,
    )
    from cli.logsource.source_flags import SourceFlags, with_broker_flags, with_source_flags
    from cli.logsource.topic_flags import check_filter, check_topic
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "cluster_keys": "check_cluster_key cluster_key read_cluster_key",
            "log_failures": "IncompleteLogs LogFailures",
            "log_store": (
                "ServerOfClients Store answer_requests bridge_access check_files fit_packet_size "
                "nats_tls nats_users open_cluster open_store start_for_clients"
            ),
            "node_logs": "check_one_log check_comparable flags_of_session open_logs open_node_logs",
            "several_logs": "log_names log_of_session",
            "point_resolution": (
                "clock_notes cut_off end_at is_between jump_notes parse_point point_at start_at "
                "write_clock_notes"
            ),
            "nats_access": "external_access",
            "source": (
                "find_location index_directory index_path named_stream open_source write_notice"
            ),
            "source_flags": "SourceFlags with_broker_flags with_source_flags",
            "topic_flags": "check_filter check_topic",
        },
    )

__all__ = [
    "IncompleteLogs",
    "LogFailures",
    "ServerOfClients",
    "SourceFlags",
    "Store",
    "answer_requests",
    "bridge_access",
    "check_cluster_key",
    "check_comparable",
    "check_files",
    "check_filter",
    "check_one_log",
    "check_topic",
    "clock_notes",
    "cluster_key",
    "cut_off",
    "end_at",
    "external_access",
    "find_location",
    "fit_packet_size",
    "flags_of_session",
    "index_directory",
    "index_path",
    "is_between",
    "jump_notes",
    "log_names",
    "log_of_session",
    "named_stream",
    "nats_tls",
    "nats_users",
    "open_cluster",
    "open_logs",
    "open_node_logs",
    "open_source",
    "open_store",
    "parse_point",
    "point_at",
    "read_cluster_key",
    "start_at",
    "start_for_clients",
    "with_broker_flags",
    "with_source_flags",
    "write_clock_notes",
    "write_notice",
]
