"""MQTT topics as NATS subjects, and the headers of NATS messages."""

from protocol.nats.headers import (
    MAX_CLIENT,
    Headers,
    constant_part,
    encode_value,
    has_status,
    header_block,
    parse_headers,
    without_message_id,
)
from protocol.nats.mapping import (
    MAX_SUBJECT,
    Mapping,
    MappingError,
    is_reserved_subject,
    parse_users,
)
from protocol.nats.property_headers import (
    MAX_PROPERTIES,
    NO_PROPERTIES,
    PropertyLines,
    ReadProperties,
    allowed_names,
    expiry_lines,
    property_lines,
    read_properties,
)
from protocol.nats.subjects import (
    SubjectError,
    filter_to_subjects,
    subject_to_topic,
    topic_to_subject,
)

__all__ = [
    "MAX_CLIENT",
    "MAX_PROPERTIES",
    "MAX_SUBJECT",
    "NO_PROPERTIES",
    "Headers",
    "Mapping",
    "MappingError",
    "PropertyLines",
    "ReadProperties",
    "SubjectError",
    "allowed_names",
    "constant_part",
    "encode_value",
    "expiry_lines",
    "filter_to_subjects",
    "has_status",
    "header_block",
    "is_reserved_subject",
    "parse_headers",
    "parse_users",
    "property_lines",
    "read_properties",
    "subject_to_topic",
    "topic_to_subject",
    "without_message_id",
]
