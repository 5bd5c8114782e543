"""The settings by topic: the sections of ``foldmq serve --help``.

Commands that need only a few settings get all names from here, without loading their model.
"""

from typing import Final

_TOPICS: Final = {
    "Listeners": "config listen unix_mode ws_path ws_origins proxy_protocol proxy_from",
    "TLS": (
        "tls_cert tls_key tls_key_password_file tls_min_version tls_ciphers tls_client_ca "
        "tls_client_certs tls_crl tls_identity"
    ),
    "Authentication and permissions": (
        "allow_anonymous password_file auth_method jwt_keys jwt_issuer jwt_audience "
        "jwt_user_claim jwt_groups_claim auth_subject auth_nats_user auth_timeout auth_cache "
        "permissions denied_publish clear_denied_retained pseudonyms"
    ),
    "Log and retention": (
        "data_dir sync keep keep_bytes keep_until_archived index_bytes commit_delay ack_delay "
        "commit_timeout"
    ),
    "Log on an external NATS server": (
        "nats_url nats_user nats_password nats_password_file nats_creds nats_nkey nats_ca "
        "nats_cert nats_key nats_domain nats_replicas"
    ),
    "Cluster": (
        "cluster partitions cluster_key_file cluster_listen cluster_advertise cluster_tls_cert "
        "cluster_tls_key cluster_tls_ca failover_grace"
    ),
    "Several processes on one machine": "processes",
    "Sessions and delivery": (
        "session_expiry max_clock_gap ack_wait max_ack_pending max_queued_messages "
        "max_queued_bytes max_keep_alive receive_maximum max_topic_aliases topic_aliases_out "
        "check_payload_format response_information reject_qos2_publish downgrade_qos2_subscribe "
        "shared_strategy shared_for_mqtt3 max_shared_members takeover_delay"
    ),
    "Limits": (
        "max_connections max_connections_per_address max_connections_per_user connection_rate "
        "connection_rate_per_address connection_rate_per_user publish_rate "
        "publish_rate_per_address publish_rate_per_user publish_rate_per_client publish_bytes "
        "publish_bytes_per_address publish_bytes_per_user publish_bytes_per_client "
        "throttle_timeout max_sessions max_subscriptions max_subscriptions_total subscribe_rate "
        "max_topic_levels max_wildcards max_wildcard_patterns max_wildcard_patterns_total "
        "max_packet_size min_packet_rate max_outbound_bytes max_unread_bytes slow_reader_time"
    ),
    "Protection against abuse": (
        "connect_timeout max_unauthenticated max_unauthenticated_bytes max_auth_steps "
        "max_auth_bytes max_reauthentications login_failures login_failures_per_address "
        "login_backoff max_faults_per_address fault_backoff flapping_connects flapping_backoff "
        "overload_lag overload_commit"
    ),
    "NATS clients and bridge": (
        "nats_listen nats_users nats_anonymous nats_tls_cert nats_tls_key nats_tls_client_ca "
        "nats_store bridge bridge_filters bridge_always bridge_map bridge_user_map bridge_qos "
        "bridge_ttl bridge_client_headers bridge_url bridge_user bridge_password "
        "bridge_password_file bridge_creds bridge_nkey"
    ),
    "Monitoring and operation": (
        "web web_operate metrics metrics_hosts sys_interval log_level log_format event_loop"
    ),
}

TOPIC_OF: Final = {name: title for title, names in _TOPICS.items() for name in names.split()}
"""The topic of each setting, by its name."""

USUAL_SETTINGS: Final = frozenset(
    [
        "config",
        "listen",
        "tls_cert",
        "tls_key",
        "tls_client_ca",
        "allow_anonymous",
        "password_file",
        "permissions",
        "data_dir",
        "sync",
        "keep",
        "keep_bytes",
        "nats_url",
        "cluster",
        "processes",
        "session_expiry",
        "max_queued_messages",
        "max_connections",
        "max_packet_size",
        "publish_rate",
        "nats_listen",
        "bridge",
        "web",
        "metrics",
        "log_level",
        "log_format",
    ]
)
"""The settings of ``foldmq serve --help``; ``--help-all`` shows all of them."""
SETTING_NAMES: Final = tuple(name for name in TOPIC_OF if name != "config")
"""The names of all settings, by topic; ``config`` is a flag only."""
