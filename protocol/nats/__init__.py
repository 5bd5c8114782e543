"""MQTT topics as NATS subjects, and the headers of NATS messages."""

from protocol.nats.headers import (
    MAX_CLIENT,
    Headers,
    constant_part,
    encode_value,
    header_block,
    parse_headers,
)
from protocol.nats.mapping import (
    MAX_SUBJECT,
    Mapping,
    MappingError,
    is_reserved_subject,
    parse_users,
)
from protocol.nats.subjects import (
    SubjectError,
    filter_to_subjects,
    subject_to_topic,
    topic_to_subject,
)

__all__ = [
    "MAX_CLIENT",
    "MAX_SUBJECT",
    "Headers",
    "Mapping",
    "MappingError",
    "SubjectError",
    "constant_part",
    "encode_value",
    "filter_to_subjects",
    "header_block",
    "is_reserved_subject",
    "parse_headers",
    "parse_users",
    "subject_to_topic",
    "topic_to_subject",
]
