"""The log that a command reads: flags, moments, topics; and the log store of ``foldmq serve``."""

from typing import TYPE_CHECKING

from protocol.front_door import front_door

if TYPE_CHECKING:
    from cli.logsource.log_store import (
        Store,
        answer_requests,
        check_files,
        cluster_key,
        fit_packet_size,
        nats_tls,
        nats_users,
        open_store,
    )
    from cli.logsource.moments import cut_off, parse_moment, point_at, start_at
    from cli.logsource.nats_access import foreign_access
    from cli.logsource.source import (
        find_location,
        index_directory,
        index_path,
        named_stream,
        open_source,
        say,
    )
    from cli.logsource.source_flags import SourceFlags, with_broker_flags, with_source_flags
    from cli.logsource.topic_flags import check_filter, check_topic
else:
    __getattr__ = front_door(
        __name__,
        {
            "log_store": (
                "Store answer_requests check_files cluster_key fit_packet_size nats_tls nats_users "
                "open_store"
            ),
            "moments": "cut_off parse_moment point_at start_at",
            "nats_access": "foreign_access",
            "source": "find_location index_directory index_path named_stream open_source say",
            "source_flags": "SourceFlags with_broker_flags with_source_flags",
            "topic_flags": "check_filter check_topic",
        },
    )

__all__ = [
    "SourceFlags",
    "Store",
    "answer_requests",
    "check_files",
    "check_filter",
    "check_topic",
    "cluster_key",
    "cut_off",
    "find_location",
    "fit_packet_size",
    "foreign_access",
    "index_directory",
    "index_path",
    "named_stream",
    "nats_tls",
    "nats_users",
    "open_source",
    "open_store",
    "parse_moment",
    "point_at",
    "say",
    "start_at",
    "with_broker_flags",
    "with_source_flags",
]
