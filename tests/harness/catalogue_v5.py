"""Packets of clients at level 5: bytes, and their meaning or the statement that they break.

All bytes are written out by hand, so that they prove the writers as well as the readers.
"""

from dataclasses import dataclass

from protocol.mqtt.packets import (
    Acks,
    Auth,
    Connect,
    ConnectProperties,
    Disconnect,
    Packet,
    PacketType,
    Pingreq,
    Publish,
    Subscribe,
    Unsubscribe,
    Will,
)
from protocol.mqtt.reason_codes import ReasonCode

CONNECT5 = b"\x10\x0e\0\4MQTT\5\2\0\x3c\0\0\1c"
CONNECT_AUTH = b"\x10\x12\0\4MQTT\5\2\0\x3c\4\x15\0\1m\0\1c"
LIMIT = 400_000
ALIASES = 10
"""The maximum packet size and Topic Alias Maximum with which the catalogue is decoded."""


@dataclass(frozen=True)
class Good5:
    name: str
    raw: bytes
    packet: Packet | Publish
    after: bytes = CONNECT5
    """What the client sent before."""
    shortest: bool = True
    """Whether the encoder makes the same bytes of it."""


@dataclass(frozen=True)
class Bad5:
    name: str
    raw: bytes
    reason: ReasonCode
    statement: str = "MQTT-4.13.1-1"
    after: bytes = CONNECT5


def connect5(flags: int, payload: bytes, block: bytes = b"", *, level: int = 5) -> bytes:
    head = b"\0\4MQTT" + bytes((level, flags, 0, 60, len(block))) + block
    return b"\x10" + bytes((len(head + payload),)) + head + payload


def _good_connect(
    name: str, flags: int, payload: bytes, packet: Connect, *, block: bytes = b""
) -> Good5:
    return Good5(name, connect5(flags, payload, block), packet, b"")


def _bad_connect(
    name: str,
    flags: int,
    payload: bytes,
    reason: ReasonCode,
    statement: str = "MQTT-4.13.1-1",
    *,
    block: bytes = b"",
) -> Bad5:
    return Bad5(name, connect5(flags, payload, block), reason, statement, b"")


def _connected(**more: object) -> Connect:
    fields = {"properties": ConnectProperties(), **more}
    return Connect(5, "c", True, 60, **fields)  # type: ignore[arg-type]


def _publish(payload: bytes, block: bytes = b"", *, qos: int = 0, pid: int = 0) -> Publish:
    return Publish(b"t", payload, qos, False, False, pid, block)


GOOD5 = [
    Good5("connect", CONNECT5, _connected(), b""),
    _good_connect(
        "connect without Clean Start, empty identifier",
        0,
        b"\0\0",
        Connect(5, "", False, 60, properties=ConnectProperties()),
    ),
    _good_connect(
        "connect password alone", 0x42, b"\0\1c\0\2\0\xff", _connected(password=b"\0\xff")
    ),
    _good_connect(
        "connect all properties",
        2,
        b"\0\1c",
        _connected(
            properties=ConnectProperties(
                0xFFFFFFFF, 1, 4096, 7, True, False, (("k", "v"), ("k", "w")), "m", b"\0"
            )
        ),
        block=b"\x11\xff\xff\xff\xff\x21\0\1\x27\0\0\x10\0\x22\0\7\x19\1\x17\0\x15\0\1m\x16\0\1\0"
        b"\x26\0\1k\0\1v\x26\0\1k\0\1w",
    ),
    _good_connect(
        "connect with a will and its properties",
        0x2E | 0xC0,
        b"\0\1c\x11\x18\0\0\0\5\2\0\0\0\x0a\x26\0\1a\0\1b\0\1w\0\3bye\0\1u\0\1p",
        _connected(
            will=Will("w", b"bye", 1, True, 5, b"\2\0\0\0\x0a\x26\0\1a\0\1b"),
            username="u",
            password=b"p",
        ),
    ),
    Good5("publish", b"\x30\x06\0\1t\0mm", _publish(b"mm")),
    Good5("publish empty message", b"\x30\4\0\1t\0", _publish(b"")),
    Good5("publish QoS 1", b"\x32\7\0\1t\1\2\0m", _publish(b"m", qos=1, pid=258)),
    Good5(
        "publish with all that is passed on",
        b"\x34\x2a\0\1t\0\1\x23\2\0\0\0\x3c\1\1\3\0\3t/x\x08\0\1r\x09\0\2\0\1\x26\0\1k\0\1v"
        b"\x26\0\1a\0\0m",
        _publish(
            b"m",
            b"\2\0\0\0\x3c\1\1\3\0\3t/x\x08\0\1r\x09\0\2\0\1\x26\0\1k\0\1v\x26\0\1a\0\0",
            qos=2,
            pid=1,
        ),
    ),
    Good5(
        "publish expiry is put first",
        b"\x30\x0c\0\1t\7\1\0\2\0\0\0\x09m",
        _publish(b"m", b"\2\0\0\0\x09\1\0"),
        shortest=False,
    ),
    Good5(
        "publish alias is left out",
        b"\x30\x0d\0\1t\x08\1\1\x23\0\x0a\3\0\0m",
        _publish(b"m", b"\1\1\3\0\0"),
        shortest=False,
    ),
    Good5("puback", b"\x40\2\1\2", Acks(PacketType.PUBACK, [258])),
    Good5("puback with reason 0", b"\x40\3\0\1\0", Acks(PacketType.PUBACK, [1]), shortest=False),
    Good5(
        "puback with reason 0 and no properties",
        b"\x40\4\0\1\0\0",
        Acks(PacketType.PUBACK, [1]),
        shortest=False,
    ),
    Good5("pubrec refused", b"\x50\3\0\1\x97", Acks(PacketType.PUBREC, [1], [0x97])),
    Good5(
        "pubrec refused with no properties",
        b"\x50\4\0\1\x97\0",
        Acks(PacketType.PUBREC, [1], [0x97]),
        shortest=False,
    ),
    Good5(
        "pubrel says why",
        b"\x62\x0e\0\1\x92\x0a\x1f\0\2no\x26\0\0\0\0",
        Acks(PacketType.PUBREL, [1], [0x92]),
        shortest=False,
    ),
    Good5("pubcomp unknown", b"\x70\3\0\1\x92", Acks(PacketType.PUBCOMP, [1], [0x92])),
    Good5(
        "subscribe with options",
        b"\x82\x0d\0\1\0\0\1#\x2d\0\3a/+\2",
        Subscribe(1, [("#", 1), ("a/+", 2)], [0x2C, 0]),
    ),
    Good5(
        "subscribe with identifier and user property",
        b"\x82\x11\0\1\x0a\x0b\xac\2\x26\0\1k\0\1v\0\1t\0",
        Subscribe(1, [("t", 0)], [0], 300, (("k", "v"),)),
    ),
    Good5(
        "subscribe shared",
        b"\x82\x10\0\1\0\0\x0a$share/g/#\1",
        Subscribe(1, [("$share/g/#", 1)], [0]),
    ),
    Good5(
        "unsubscribe", b"\xa2\x13\0\1\0\0\1#\0\x0b$share/g/+/", Unsubscribe(1, ["#", "$share/g/+/"])
    ),
    Good5("pingreq", b"\xc0\0", Pingreq()),
    Good5("disconnect", b"\xe0\0", Disconnect()),
    Good5("disconnect with reason 0", b"\xe0\1\0", Disconnect(), shortest=False),
    Good5("disconnect with reason 0, no properties", b"\xe0\2\0\0", Disconnect(), shortest=False),
    Good5("disconnect with will", b"\xe0\1\4", Disconnect(4)),
    Good5(
        "disconnect with properties",
        b"\xe0\x12\x80\x10\x11\0\0\0\0\x1f\0\1x\x26\0\1k\0\1v",
        Disconnect(0x80, 0, "x", (("k", "v"),)),
    ),
    Good5("auth", b"\xf0\x0b\x18\x09\x15\0\1m\x16\0\2\0\1", Auth(0x18, "m", b"\0\1"), CONNECT_AUTH),
    Good5("auth again", b"\xf0\6\x19\4\x15\0\1m", Auth(0x19, "m"), CONNECT_AUTH),
]

_MALFORMED, _VIOLATION = ReasonCode.MALFORMED_PACKET, ReasonCode.PROTOCOL_ERROR
_ALIAS = ReasonCode.TOPIC_ALIAS_INVALID

BAD5 = [
    # Fixed header
    Bad5("second connect", CONNECT5, _VIOLATION, "MQTT-3.1.0-2"),
    Bad5("type 0", b"\0\0", _MALFORMED),
    Bad5("connack from a client", b"\x20\2\0\0", _VIOLATION),
    Bad5("pingresp from a client", b"\xd0\0", _VIOLATION),
    Bad5("puback flags", b"\x42\2\0\1", _MALFORMED, "MQTT-2.1.3-1"),
    Bad5("pubrel flags", b"\x60\2\0\1", _MALFORMED, "MQTT-3.6.1-1"),
    Bad5("subscribe flags", b"\x80\7\0\1\0\0\1t\0", _MALFORMED, "MQTT-3.8.1-1"),
    Bad5("unsubscribe flags", b"\xa0\6\0\1\0\0\1t", _MALFORMED, "MQTT-3.10.1-1"),
    Bad5("disconnect flags", b"\xe1\0", _MALFORMED, "MQTT-3.14.1-1"),
    Bad5("auth flags", b"\xf1\0", _MALFORMED, "MQTT-3.15.1-1"),
    Bad5("pingreq with a body", b"\xc0\1\0", _MALFORMED),
    Bad5("five length bytes", b"\x30\xff\xff\xff\xff\1", _MALFORMED, "MQTT-1.5.5-1"),
    Bad5("needless length byte", b"\x30\x84\0\0\1t\0", _MALFORMED, "MQTT-1.5.5-1"),
    Bad5("too large", b"\x30\xff\xff\xff\x7f", ReasonCode.PACKET_TOO_LARGE, "MQTT-3.2.2-15"),
    # CONNECT
    Bad5(
        "connect too large",
        b"\x10\x97\x80\x14" + CONNECT5[2:],
        ReasonCode.PACKET_TOO_LARGE,
        "MQTT-3.2.2-15",
        b"",
    ),
    _bad_connect("connect reserved flag", 3, b"\0\1c", _MALFORMED, "MQTT-3.1.2-3"),
    _bad_connect("connect will QoS 3", 0x1E, b"\0\1c\0\0\1w\0\0", _MALFORMED, "MQTT-3.1.2-12"),
    _bad_connect("connect will QoS, no will", 0x0A, b"\0\1c", _MALFORMED, "MQTT-3.1.2-11"),
    _bad_connect("connect will retain, no will", 0x22, b"\0\1c", _MALFORMED, "MQTT-3.1.2-13"),
    _bad_connect("connect will, none there", 6, b"\0\1c\0", _MALFORMED, "MQTT-3.1.2-9"),
    _bad_connect("connect will wildcard", 6, b"\0\1c\0\0\1#\0\0", _MALFORMED, "MQTT-3.3.2-2"),
    _bad_connect("connect will topic empty", 6, b"\0\1c\0\0\0\0\0", _MALFORMED, "MQTT-4.7.3-1"),
    _bad_connect("connect user name missing", 0x82, b"\0\1c", _MALFORMED, "MQTT-3.1.2-17"),
    _bad_connect("connect password missing", 0x42, b"\0\1c", _MALFORMED, "MQTT-3.1.2-19"),
    _bad_connect("connect no identifier", 2, b"", _MALFORMED, "MQTT-3.1.3-3"),
    _bad_connect("connect identifier U+0000", 2, b"\0\1\0", _MALFORMED, "MQTT-1.5.4-2"),
    _bad_connect("connect surrogate", 2, b"\0\3\xed\xa0\x80", _MALFORMED, "MQTT-1.5.4-1"),
    _bad_connect("connect trailing byte", 2, b"\0\1c\0", _MALFORMED),
    _bad_connect("connect cut off", 2, b"\0\2c", _MALFORMED, "MQTT-3.1.3-3"),
    _bad_connect(
        "connect will topic not UTF-8", 6, b"\0\1c\0\0\1\xff\0\0", _MALFORMED, "MQTT-1.5.4-1"
    ),
    _bad_connect("connect user name not UTF-8", 0x82, b"\0\1c\0\1\xff", _MALFORMED, "MQTT-1.5.4-1"),
    _bad_connect("connect property twice", 2, b"\0\1c", _VIOLATION, block=b"\x21\0\1" * 2),
    _bad_connect("connect Receive Maximum 0", 2, b"\0\1c", _VIOLATION, block=b"\x21\0\0"),
    _bad_connect("connect property of others", 2, b"\0\1c", _MALFORMED, block=b"\x23\0\1"),
    _bad_connect("connect will property twice", 6, b"\0\1c\4\1\1\1\1\0\1w\0\0", _VIOLATION),
    _bad_connect("connect will property of others", 6, b"\0\1c\3\x23\0\1\0\1w\0\0", _MALFORMED),
    _bad_connect(
        "connect Authentication Data without a method", 2, b"\0\1c", _VIOLATION, block=b"\x16\0\0"
    ),
    Bad5("connect properties over its end", b"\x10\x0b\0\4MQTT\5\2\0\x3c\5", _MALFORMED, after=b""),
    # PUBLISH
    Bad5("publish QoS 3", b"\x36\7\0\1t\0\1\0m", _MALFORMED, "MQTT-3.3.1-4"),
    Bad5("publish dup at QoS 0", b"\x38\5\0\1t\0m", _MALFORMED, "MQTT-3.3.1-2"),
    Bad5("publish without a body", b"\x30\0", _MALFORMED),
    Bad5("publish half a length", b"\x30\1\0", _MALFORMED),
    Bad5("publish without Property Length", b"\x30\3\0\1t", _MALFORMED),
    Bad5("publish properties over its end", b"\x30\5\0\1t\2\1", _MALFORMED),
    Bad5("publish longest Property Length", b"\x30\6\0\1t\xff\xff\x7f", _MALFORMED),
    Bad5("publish Property Length cut off", b"\x30\4\0\1t\x80", _MALFORMED),
    Bad5("publish needless Property Length", b"\x30\5\0\1t\x80\0", _MALFORMED, "MQTT-1.5.5-1"),
    Bad5(
        "publish Property Length of five bytes",
        b"\x30\x08\0\1t\x80\x80\x80\x80\1",
        _MALFORMED,
        "MQTT-1.5.5-1",
    ),
    Bad5("publish empty topic, no alias", b"\x30\3\0\0\0", _VIOLATION, "MQTT-4.7.3-1"),
    Bad5("publish empty topic, unknown alias", b"\x30\6\0\0\3\x23\0\1", _VIOLATION),
    Bad5("publish alias 0", b"\x30\7\0\1t\3\x23\0\0", _ALIAS, "MQTT-3.3.2-8"),
    Bad5("publish alias above the maximum", b"\x30\7\0\1t\3\x23\0\x0b", _ALIAS, "MQTT-3.3.2-9"),
    Bad5("publish wildcard", b"\x30\4\0\1+\0", _MALFORMED, "MQTT-3.3.2-2"),
    Bad5("publish wildcard and alias", b"\x30\7\0\1#\3\x23\0\1", _MALFORMED, "MQTT-3.3.2-2"),
    Bad5("publish topic not UTF-8", b"\x30\4\0\1\xe9\0", _MALFORMED, "MQTT-1.5.4-1"),
    Bad5("publish packet id 0", b"\x32\6\0\1t\0\0\0", _VIOLATION, "MQTT-2.2.1-3"),
    Bad5("publish subscription identifier", b"\x30\6\0\1t\2\x0b\1", _VIOLATION, "MQTT-3.3.4-6"),
    Bad5("publish unknown property", b"\x30\6\0\1t\2\x7e\1", _MALFORMED),
    Bad5("publish property of two bytes", b"\x30\6\0\1t\2\x80\1", _MALFORMED),
    Bad5("publish wildcard to answer to", b"\x30\x08\0\1t\4\x08\0\1+", _VIOLATION, "MQTT-3.3.2-14"),
    Bad5("publish nothing to answer to", b"\x30\7\0\1t\3\x08\0\0", _VIOLATION, "MQTT-4.7.3-1"),
    Bad5(
        "publish user property not UTF-8",
        b"\x30\x0b\0\1t\7\x26\0\1\xff\0\1v",
        _MALFORMED,
        "MQTT-1.5.7-1",
    ),
    Bad5(
        "publish Content Type not UTF-8", b"\x30\x08\0\1t\4\3\0\1\xff", _MALFORMED, "MQTT-3.3.2-19"
    ),
    Bad5("publish answer not UTF-8", b"\x30\x08\0\1t\4\x08\0\1\xff", _MALFORMED, "MQTT-3.3.2-13"),
    Bad5("publish property twice", b"\x30\x08\0\1t\4\1\1\1\1", _VIOLATION),
    # Acknowledgements
    Bad5("puback without a body", b"\x40\0", _MALFORMED),
    Bad5("puback too short", b"\x40\1\1", _MALFORMED),
    Bad5("puback packet id 0", b"\x40\2\0\0", _VIOLATION, "MQTT-2.2.1-5"),
    Bad5("puback packet id 0 with reason", b"\x40\3\0\0\0", _VIOLATION, "MQTT-2.2.1-5"),
    Bad5("puback reason of another packet", b"\x40\3\0\1\x92", _VIOLATION, "MQTT-3.4.2-1"),
    Bad5("pubrec unknown reason", b"\x50\4\0\1\x7f\0", _VIOLATION, "MQTT-3.5.2-1"),
    Bad5("pubrel reason of another packet", b"\x62\3\0\1\x80", _VIOLATION, "MQTT-3.6.2-1"),
    Bad5("pubcomp reason of another packet", b"\x70\3\0\1\x10", _VIOLATION, "MQTT-3.7.2-1"),
    Bad5("puback with a byte behind", b"\x40\5\0\1\0\0\0", _MALFORMED),
    Bad5("puback with another's property", b"\x40\6\0\1\0\2\1\0", _MALFORMED),
    # SUBSCRIBE, UNSUBSCRIBE
    Bad5("subscribe packet id 0", b"\x82\7\0\0\0\0\1t\0", _VIOLATION, "MQTT-2.2.1-3"),
    Bad5("subscribe nothing", b"\x82\3\0\1\0", _VIOLATION, "MQTT-3.8.3-2"),
    Bad5("subscribe without options", b"\x82\6\0\1\0\0\1t", _MALFORMED),
    Bad5("subscribe QoS 3", b"\x82\7\0\1\0\0\1t\3", _VIOLATION),
    Bad5("subscribe reserved bit 6", b"\x82\7\0\1\0\0\1t\x40", _MALFORMED, "MQTT-3.8.3-5"),
    Bad5("subscribe reserved bit 7", b"\x82\7\0\1\0\0\1t\x80", _MALFORMED, "MQTT-3.8.3-5"),
    Bad5("subscribe Retain Handling 3", b"\x82\7\0\1\0\0\1t\x30", _VIOLATION),
    Bad5(
        "subscribe No Local on a share",
        b"\x82\x10\0\1\0\0\x0a$share/g/t\5",
        _VIOLATION,
        "MQTT-3.8.3-4",
    ),
    Bad5(
        "subscribe share without a name",
        b"\x82\x0f\0\1\0\0\x09$share//t\0",
        _MALFORMED,
        "MQTT-4.8.2-1",
    ),
    Bad5("subscribe share +", b"\x82\x10\0\1\0\0\x0a$share/+/t\0", _MALFORMED, "MQTT-4.8.2-2"),
    Bad5(
        "subscribe share without a filter",
        b"\x82\x0e\0\1\0\0\x08$share/g\0",
        _MALFORMED,
        "MQTT-4.8.2-2",
    ),
    Bad5(
        "subscribe share, empty filter",
        b"\x82\x0f\0\1\0\0\x09$share/g/\0",
        _MALFORMED,
        "MQTT-4.8.2-2",
    ),
    Bad5("subscribe identifier 0", b"\x82\x09\0\1\2\x0b\0\0\1t\0", _VIOLATION),
    Bad5("subscribe two identifiers", b"\x82\x0b\0\1\4\x0b\1\x0b\2\0\1t\0", _VIOLATION),
    Bad5("subscribe empty filter", b"\x82\6\0\1\0\0\0\0", _MALFORMED, "MQTT-4.7.3-1"),
    Bad5("subscribe # not last", b"\x82\x09\0\1\0\0\3#/a\0", _MALFORMED, "MQTT-4.7.1-1"),
    Bad5("subscribe + not alone", b"\x82\x08\0\1\0\0\2a+\0", _MALFORMED, "MQTT-4.7.1-2"),
    Bad5("subscribe not UTF-8", b"\x82\7\0\1\0\0\1\xff\0", _MALFORMED, "MQTT-1.5.4-1"),
    Bad5("unsubscribe not UTF-8", b"\xa2\6\0\1\0\0\1\xff", _MALFORMED, "MQTT-1.5.4-1"),
    Bad5("unsubscribe packet id 0", b"\xa2\6\0\0\0\0\1t", _VIOLATION, "MQTT-2.2.1-3"),
    Bad5("unsubscribe identifier", b"\xa2\x08\0\1\2\x0b\1\0\1t", _MALFORMED),
    Bad5("unsubscribe nothing", b"\xa2\3\0\1\0", _VIOLATION, "MQTT-3.10.2-2"),
    Bad5("unsubscribe cut off", b"\xa2\5\0\1\0\0\1", _MALFORMED, "MQTT-3.10.2-1"),
    # DISCONNECT, AUTH
    Bad5("disconnect reason of servers", b"\xe0\1\x8e", _VIOLATION, "MQTT-3.14.2-1"),
    Bad5("disconnect unknown reason", b"\xe0\1\3", _VIOLATION, "MQTT-3.14.2-1"),
    Bad5("disconnect to another server", b"\xe0\6\0\4\x1c\0\1x", _VIOLATION),
    Bad5("disconnect property twice", b"\xe0\x0c\0\x0a" + b"\x11\0\0\0\0" * 2, _VIOLATION),
    Bad5("disconnect with a byte behind", b"\xe0\3\0\0\0", _MALFORMED),
    Bad5("auth without a method before", b"\xf0\6\x18\4\x15\0\1m", _VIOLATION, "MQTT-4.12.0-7"),
    Bad5("auth without reason", b"\xf0\0", _VIOLATION, "MQTT-3.15.2-1", CONNECT_AUTH),
    Bad5("auth success", b"\xf0\6\0\4\x15\0\1m", _VIOLATION, "MQTT-3.15.2-1", CONNECT_AUTH),
    Bad5("auth without properties", b"\xf0\1\x18", _MALFORMED, after=CONNECT_AUTH),
    Bad5("auth without a method", b"\xf0\2\x18\0", _VIOLATION, after=CONNECT_AUTH),
    Bad5(
        "auth with another method",
        b"\xf0\6\x18\4\x15\0\1n",
        _VIOLATION,
        "MQTT-4.12.0-5",
        CONNECT_AUTH,
    ),
]
