"""Admission: what happens to a PUBLISH, before it is recorded and routed.

This is the one place of the policy. A session decides about all messages of a packet column with
:func:`admit`, the fast path about a single one with :func:`admits`. The rules, in this order:

1. ``qos2_rejected``: QoS 2 is not accepted at all. The connection is closed.
2. A QoS 2 message whose packet identifier awaits its PUBREL is the same message sent again
   [MQTT-4.3.3-2]. It is acknowledged; nothing else is decided about it.
3. ``not_permitted``: the client may not publish to the topic. The message is dropped, or the
   connection is closed, depending on ``denied_publish``.
4. ``payload_format``: the payload is not the UTF-8 that it claims to be. The message is dropped.
5. ``message_too_large``: no record has room for the message. The connection is closed.
6. ``reserved_topic``, ``topic_levels`` and ``personal_keys``: no client may publish to the topic.
   The message is dropped. Only bridges of other brokers may publish to
   ``$SYS/broker/connection/NAME/state``, and MQTT 5 clients if NAME is their client identifier: at
   MQTT 5 a bridge does not say that it is one.
   Messages at QoS 0 without RETAIN to reserved topics have no receivers, so the first is not asked
   about them.

Nothing is decided about messages behind the one that closes the connection [MQTT-3.3.5-2].
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from actors.access.rules import TopicAcl
from eventstore.format.positions import Position
from protocol.mqtt.message_properties import is_payload_format_broken
from protocol.mqtt.packets import Publishes
from protocol.mqtt.reason_codes import ReasonCode
from protocol.mqtt.topics import is_bridge_state, is_reserved_topic

NOT_PERMITTED: Final[str] = "not_permitted"
PAYLOAD_FORMAT: Final[str] = "payload_format"
RESERVED_TOPIC: Final[str] = "reserved_topic"
TOPIC_LEVELS: Final[str] = "topic_levels"
PERSONAL_KEYS: Final[str] = "personal_keys"
QOS2_REJECTED: Final[str] = "qos2_rejected"
BRIDGE_LOOP: Final[str] = "bridge_loop"
TOO_LARGE: Final[str] = "message_too_large"

_CODES: Final[dict[str, int]] = {
    NOT_PERMITTED: int(ReasonCode.NOT_AUTHORIZED),
    PAYLOAD_FORMAT: int(ReasonCode.PAYLOAD_FORMAT_INVALID),
    RESERVED_TOPIC: int(ReasonCode.TOPIC_NAME_INVALID),
    TOPIC_LEVELS: int(ReasonCode.TOPIC_NAME_INVALID),
    PERSONAL_KEYS: int(ReasonCode.QUOTA_EXCEEDED),
}
"""Reasons for drops, in the order in which these are recorded -> reason codes of MQTT 5."""
_ANSWERS: Final[bytes] = b"$nats/reply/"
"""Prefix of reply topics. Retained messages below it are refused: no client may read there, so they
would never be cleared."""


@dataclass
class PublishRules:
    """The settings that decide about PUBLISH packets."""

    reject_qos2: bool = False
    """Close the connection of a client that publishes at QoS 2."""
    close_denied: bool = False
    """Close the connection of a client that publishes without permission."""
    check_payload_format: bool = False
    """Drop messages whose payload is not the UTF-8 that it claims to be."""
    max_levels: int = 0
    """Maximum number of levels of a topic; 0: unlimited."""
    lacks_key: Callable[[bytes], bool] | None = None
    """Returns whether the contents of a topic need a key for which there is no room; None: nothing
    is sealed."""


class AdmittedPublish:
    """The decision about the messages of a packet."""

    __slots__ = ("accepted", "answered", "close", "drops", "reasons")

    def __init__(
        self,
        accepted: Publishes,
        answered: int,
        drops: Sequence[tuple[str, list[bytes]]] = (),
        close: str = "",
        reasons: Sequence[int] = (),
    ) -> None:
        self.accepted = accepted
        """The messages to be published."""
        self.answered = answered
        """How many of the packet's messages are acknowledged: those before the one that closes the
        connection."""
        self.drops = drops
        """The reason for dropping messages, and the topic of each."""
        self.close = close
        """The reason for closing the connection; empty: it stays open."""
        self.reasons = reasons
        """Reason codes of the acknowledgements (MQTT 5); empty: all are 0."""


def admit(
    packet: Publishes,
    rules: PublishRules,
    access: TopicAcl | None,
    inbound: Mapping[int, Position],
    too_large: Sequence[int] = (),
    *,
    explain: bool = False,
    bridge: bool | str = False,
) -> AdmittedPublish:
    """Decide about the messages of a client.

    ``access`` are the client's permissions, None: it has all. ``inbound`` are the packet
    identifiers that await a PUBREL. ``too_large`` are the indices of messages for which no record
    has room. ``explain``: the client gets reason codes; ``bridge``: see :func:`refused_topic`.
    """
    count, second = len(packet.topics), packet.qos == 2
    if second and rules.reject_qos2:
        return AdmittedPublish(packet.select(range(0)), 0, close=QOS2_REJECTED)
    denied = access.denied(packet.topics) if access is not None else None
    invalid: set[tuple[bytes, bytes]] | None = None
    if rules.check_payload_format and packet.blocks:
        invalid = _invalid(packet)
    refused: dict[bytes, str] | None = None
    if packet.qos or packet.retain:
        refused = _refused(packet, rules, bridge=bridge)
    elif rules.max_levels or rules.lacks_key is not None:
        refused = {
            raw: reason
            for raw, reason in _refused(packet, rules).items()
            if reason != RESERVED_TOPIC
        }
    repeated = second and _are_repeated(packet.packet_ids, inbound)
    if not (denied or invalid or refused or too_large or repeated):
        return AdmittedPublish(packet, count)
    return _decide(
        packet,
        denied or set(),
        invalid or set(),
        refused or {},
        too_large,
        inbound if second else {},
        close_denied=rules.close_denied,
        explain=explain,
    )


def admit_by_topic(
    packet: Publishes, rules: PublishRules, *, bridge: bool | str = False
) -> AdmittedPublish:
    """Decide about a will, or messages from NATS, whose permissions were checked before."""
    refused = _refused(packet, rules, bridge=bridge)
    if not refused:
        return AdmittedPublish(packet, len(packet.topics))
    return _decide(packet, set(), set(), refused, (), {}, close_denied=False, explain=False)


def admits(
    rules: PublishRules,
    access: TopicAcl | None,
    inbound: Mapping[int, Position],
    topic: bytes,
    qos: int,
    packet_id: int,
    *,
    is_text: bool,
) -> bool:
    """Return whether :func:`admit` accepts a message without any other effect; False: ask it.

    The message is small and not retained, and its topic is not refused: that belongs to its route.
    ``is_text``: it claims to be UTF-8.
    """
    if access is not None and not access.publish[topic]:
        return False
    if is_text and rules.check_payload_format:
        return False
    if rules.lacks_key is not None and rules.lacks_key(topic):
        return False
    return qos != 2 or not (rules.reject_qos2 or packet_id in inbound)


def refused_topic(
    topic: bytes, rules: PublishRules, *, retain: bool = False, bridge: bool | str = False
) -> str:
    """Return why a client may not publish to a topic; empty: it may.

    ``bridge``: whether it is another broker's bridge, or the identifier of an MQTT 5 client.
    """
    if topic.startswith(b"$"):
        text = topic.decode()
        state = bridge and is_bridge_state(text) and bridge in (True, text.split("/")[3])
        if (is_reserved_topic(text) and not state) or (retain and topic.startswith(_ANSWERS)):
            return RESERVED_TOPIC
    if rules.max_levels and topic.count(b"/") >= rules.max_levels:
        return TOPIC_LEVELS
    return ""


def _refused(
    packet: Publishes, rules: PublishRules, *, bridge: bool | str = False
) -> dict[bytes, str]:
    """Return the topics of a packet to which no client may publish, and why."""
    reasons: dict[bytes, str] = {}
    for raw in set(packet.topics):
        reason = refused_topic(raw, rules, retain=packet.retain, bridge=bridge)
        if not reason and rules.lacks_key is not None and rules.lacks_key(raw):
            reason = PERSONAL_KEYS
        if reason:
            reasons[raw] = reason
    return reasons


def _invalid(packet: Publishes) -> set[tuple[bytes, bytes]]:
    """Return (properties, payload) of messages declared as UTF-8 whose payload is not UTF-8."""
    pairs = set(zip(packet.blocks or (), packet.payloads, strict=True))
    return {pair for pair in pairs if is_payload_format_broken(*pair)}


def _are_repeated(packet_ids: Sequence[int], inbound: Mapping[int, Position]) -> bool:
    """Return whether a packet identifier occurs twice, or awaits its PUBREL."""
    return len(set(packet_ids)) < len(packet_ids) or not inbound.keys().isdisjoint(packet_ids)


def _decide(
    packet: Publishes,
    denied: set[bytes],
    invalid: set[tuple[bytes, bytes]],
    refused: Mapping[bytes, str],
    too_large: Sequence[int],
    inbound: Mapping[int, Position],
    *,
    close_denied: bool,
    explain: bool,
) -> AdmittedPublish:
    """Decide about messages one by one."""
    ids = packet.packet_ids
    blocks: Sequence[bytes] = packet.blocks or ()
    keep: list[int] = []
    kept_ids: set[int] = set()
    reasons: list[int] = []
    dropped: dict[str, list[bytes]] = {reason: [] for reason in _CODES}
    close = ""
    for at, raw in enumerate(packet.topics):
        reason = ""
        if packet.qos == 2 and ids and (ids[at] in inbound or ids[at] in kept_ids):
            pass  # sent again
        elif raw in denied:
            reason = NOT_PERMITTED
            if close_denied:
                dropped[reason].append(raw)
                close = reason
                break
        elif invalid and (blocks[at], packet.payloads[at]) in invalid:
            reason = PAYLOAD_FORMAT
        elif at in too_large:
            close = TOO_LARGE
            break
        elif raw in refused:
            reason = refused[raw]
        else:
            keep.append(at)
            if ids:
                kept_ids.add(ids[at])
        if reason:
            dropped[reason].append(raw)
        reasons.append(_CODES[reason] if reason else 0)
    return AdmittedPublish(
        _some(packet, keep),
        len(reasons),
        [(reason, topics) for reason, topics in dropped.items() if topics],
        close,
        reasons if explain and any(reasons) else (),
    )


def _some(packet: Publishes, keep: list[int]) -> Publishes:
    """Return some messages of a packet; the first ones are the cheapest to select."""
    if len(keep) == len(packet.topics):
        return packet
    return packet.select(range(len(keep)) if not keep or keep[-1] < len(keep) else keep)
