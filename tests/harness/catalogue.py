"""A catalogue of packets: bytes, and their meaning or the statement that they break.

All bytes are written out by hand, so that they prove the encoder as well as the decoder.
"""

from dataclasses import dataclass

from protocol.mqtt.packets import (
    Acks,
    Connect,
    ConnectCode,
    Disconnect,
    Packet,
    PacketType,
    Pingreq,
    Publish,
    Subscribe,
    Unsubscribe,
    Will,
)

CONNECT = b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x01c"
CONNECT_3_1 = b"\x10\x0f\x00\x06MQIsdp\x03\x02\x00\x3c\x00\x01c"

LIMIT = 400_000
"""The max_packet_size with which the catalogue is decoded, in bytes."""


@dataclass(frozen=True)
class Good:
    name: str
    raw: bytes
    packet: Packet | Publish
    after: bytes = CONNECT
    """What the client sent before."""
    statement: str = ""
    """The normative statement this proves, where there is one."""
    shortest: bool = True
    """Whether the encoder makes the same bytes of it."""


@dataclass(frozen=True)
class Bad:
    name: str
    raw: bytes
    statement: str
    connack: ConnectCode | None = None
    after: bytes = CONNECT


def connect(flags: int, payload: bytes, *, head: bytes = b"\x00\x04MQTT\x04") -> bytes:
    body = head + bytes((flags, 0, 60)) + payload
    size = len(body)
    length = bytes((size,)) if size < 128 else bytes((size & 127 | 128, size >> 7))
    return b"\x10" + length + body


OLD = b"\x00\x06MQIsdp\x03"

GOOD = [
    Good("connect", CONNECT, Connect(4, "c", True, 60), b""),
    Good("connect 3.1", CONNECT_3_1, Connect(3, "c", True, 60), b""),
    Good("connect persistent", connect(0, b"\0\1c"), Connect(4, "c", False, 60), b""),
    Good(
        "connect empty client id, clean",
        connect(2, b"\0\0"),
        Connect(4, "", True, 60),
        b"",
        "MQTT-3.1.3-6",
    ),
    Good(
        "connect longest keep alive",
        b"\x10\x0d\x00\x04MQTT\x04\x02\xff\xff\x00\x01c",
        Connect(4, "c", True, 65535),
        b"",
    ),
    Good(
        "connect with everything",
        connect(0b11110110, b"\0\1c\0\3w/t\0\3bye\0\1u\0\2\x00\xff"),
        Connect(4, "c", True, 60, Will("w/t", b"bye", 2, True), "u", b"\x00\xff"),
        b"",
        "MQTT-3.1.3-1",
    ),
    Good(
        "connect with an empty will message",
        connect(0b00001110, b"\0\1c\0\1w\0\0"),
        Connect(4, "c", True, 60, Will("w", b"", 1, False)),
        b"",
    ),
    Good(
        "connect with an empty user name",
        connect(0b10000010, b"\0\1c\0\0"),
        Connect(4, "c", True, 60, None, ""),
        b"",
    ),
    Good(
        "connect 23 letters and digits",
        connect(2, b"\0\x170123456789abcdefghijABC"),
        Connect(4, "0123456789abcdefghijABC", True, 60),
        b"",
        "MQTT-3.1.3-5",
    ),
    Good(
        "connect long client id",
        connect(2, b"\0\x1e" + b"x" * 30),
        Connect(4, "x" * 30, True, 60),
        b"",
    ),
    Good(
        "connect 3.1 long client id",
        connect(2, b"\0\x1e" + b"x" * 30, head=OLD),
        Connect(3, "x" * 30, True, 60),
        b"",
    ),
    Good(
        "connect 3.1 password without user name",
        connect(0x42, b"\0\1c\0\1p", head=OLD),
        Connect(3, "c", True, 60, None, None, b"p"),
        b"",
    ),
    Good(
        "connect 3.1 user name announced, missing",
        connect(0xC2, b"\0\1c", head=OLD),
        Connect(3, "c", True, 60),
        b"",
        shortest=False,
    ),
    Good(
        "connect 3.1 reserved flag",
        connect(0x03, b"\0\1c", head=OLD),
        Connect(3, "c", True, 60),
        b"",
        shortest=False,
    ),
    Good(
        "connect client id with U+FEFF",
        connect(2, b"\0\4\xef\xbb\xbfc"),
        Connect(4, "\ufeffc", True, 60),
        b"",
        "MQTT-1.5.3-3",
    ),
    Good(
        "connect needlessly long Remaining Length",
        b"\x10\x8d\x80\x00" + CONNECT[2:],
        Connect(4, "c", True, 60),
        b"",
        shortest=False,
    ),
    Good("publish", b"\x30\x05\0\1tmm", Publish(b"t", b"mm", 0, False, False, 0)),
    Good("publish empty message", b"\x30\x03\0\1t", Publish(b"t", b"", 0, False, False, 0)),
    Good("publish retained", b"\x31\x04\0\1tm", Publish(b"t", b"m", 0, True, False, 0)),
    Good("publish QoS 1", b"\x32\x06\0\1t\0\1m", Publish(b"t", b"m", 1, False, False, 1)),
    Good(
        "publish QoS 1 again",
        b"\x3a\x06\0\1t\x01\x02m",
        Publish(b"t", b"m", 1, False, True, 258),
        statement="MQTT-3.3.1-1",
    ),
    Good(
        "publish QoS 2 retained again",
        b"\x3d\x05\0\1t\xff\xff",
        Publish(b"t", b"", 2, True, True, 65535),
    ),
    Good(
        "publish two length bytes",
        b"\x30\x80\x01\0\1t" + b"x" * 125,
        Publish(b"t", b"x" * 125, 0, False, False, 0),
    ),
    Good(
        "publish three length bytes",
        b"\x32\x80\x80\x01\0\1t\0\1" + b"x" * 16379,
        Publish(b"t", b"x" * 16379, 1, False, False, 1),
    ),
    Good(
        "publish needlessly long Remaining Length",
        b"\x30\x84\x80\x80\x00\0\1tm",
        Publish(b"t", b"m", 0, False, False, 0),
        shortest=False,
    ),
    Good(
        "publish topic with spaces, dots, empty levels and $",
        b"\x30\x0b\0\x09/ a.b//$x",
        Publish(b"/ a.b//$x", b"", 0, False, False, 0),
        statement="MQTT-4.7.3-4",
    ),
    Good(
        "publish topic with U+FEFF",
        b"\x30\x06\0\4\xef\xbb\xbft",
        Publish("\ufefft".encode(), b"", 0, False, False, 0),
        statement="MQTT-1.5.3-3",
    ),
    Good(
        "publish topic with control and non-characters",
        b"\x30\x07\0\5\x01\x7f\xef\xbf\xbf",
        Publish("\x01\x7f\uffff".encode(), b"", 0, False, False, 0),
    ),
    Good(
        "publish longest topic",
        b"\x30\x81\x80\x04\xff\xff" + b"/" * 65535,
        Publish(b"/" * 65535, b"", 0, False, False, 0),
        statement="MQTT-4.7.3-3",
    ),
    Good("puback", b"\x40\x02\x01\x02", Acks(PacketType.PUBACK, [258])),
    Good("pubrec", b"\x50\x02\x00\x01", Acks(PacketType.PUBREC, [1])),
    Good("pubrel", b"\x62\x02\x00\x01", Acks(PacketType.PUBREL, [1]), statement="MQTT-3.6.1-1"),
    Good("pubcomp", b"\x70\x02\xff\xff", Acks(PacketType.PUBCOMP, [65535])),
    Good(
        "puback needlessly long Remaining Length",
        b"\x40\x82\x00\x00\x07",
        Acks(PacketType.PUBACK, [7]),
        shortest=False,
    ),
    Good(
        "pubrel again in 3.1",
        b"\x6a\x02\x00\x01",
        Acks(PacketType.PUBREL, [1]),
        CONNECT_3_1,
        shortest=False,
    ),
    Good(
        "subscribe",
        b"\x82\x0e\0\1\0\1#\0\0\5a/+/b\2",
        Subscribe(1, [("#", 0), ("a/+/b", 2)]),
    ),
    Good(
        "subscribe empty levels",
        b"\x82\x0f\xff\xff\0\1/\1\0\x06//+//#\2",
        Subscribe(65535, [("/", 1), ("//+//#", 2)]),
    ),
    Good(
        "subscribe again in 3.1",
        b"\x8a\x06\0\1\0\1t\1",
        Subscribe(1, [("t", 1)]),
        CONNECT_3_1,
        shortest=False,
    ),
    Good("unsubscribe", b"\xa2\x09\0\1\0\1#\0\2a/", Unsubscribe(1, ["#", "a/"])),
    Good(
        "unsubscribe again in 3.1",
        b"\xaa\x05\0\1\0\1t",
        Unsubscribe(1, ["t"]),
        CONNECT_3_1,
        shortest=False,
    ),
    Good("pingreq", b"\xc0\x00", Pingreq()),
    Good("disconnect", b"\xe0\x00", Disconnect()),
]

_LEVEL = ConnectCode.UNACCEPTABLE_PROTOCOL_VERSION
_ID = ConnectCode.IDENTIFIER_REJECTED

BAD = [
    # What comes first, and what may come at all
    Bad("publish first", b"\x30\x04\0\1tm", "MQTT-3.1.0-1", after=b""),
    Bad("subscribe first", b"\x82\x06\0\1\0\1t\0", "MQTT-3.1.0-1", after=b""),
    Bad("disconnect first", b"\xe0\x00", "MQTT-3.1.0-1", after=b""),
    Bad("pingreq first", b"\xc0\x00", "MQTT-3.1.0-1", after=b""),
    Bad("HTTP first", b"GET / HTTP/1.1\r\n\r\n", "MQTT-3.1.0-1", after=b""),
    Bad("TLS first", b"\x16\x03\x01\x02\x00", "MQTT-2.2.2-2", after=b""),
    Bad("second connect", CONNECT, "MQTT-3.1.0-2"),
    Bad("type 0", b"\x00\x00", "MQTT-4.8.0-1"),
    Bad("type 15", b"\xf0\x00", "MQTT-4.8.0-1"),
    Bad("connack from a client", b"\x20\x02\x00\x00", "MQTT-4.8.0-1"),
    Bad("suback from a client", b"\x90\x03\x00\x01\x00", "MQTT-4.8.0-1"),
    Bad("unsuback from a client", b"\xb0\x02\x00\x01", "MQTT-4.8.0-1"),
    Bad("pingresp from a client", b"\xd0\x00", "MQTT-4.8.0-1"),
    # Fixed header
    Bad("connect flags", b"\x11" + CONNECT[1:], "MQTT-2.2.2-2", after=b""),
    Bad("second connect with flags", b"\x18" + CONNECT[1:], "MQTT-2.2.2-2"),
    Bad("puback flags", b"\x42\x02\x00\x01", "MQTT-2.2.2-2"),
    Bad("pubrec flags", b"\x51\x02\x00\x01", "MQTT-2.2.2-2"),
    Bad("pubrel flags", b"\x60\x02\x00\x01", "MQTT-3.6.1-1"),
    Bad("pubrel dup", b"\x6a\x02\x00\x01", "MQTT-3.6.1-1"),
    Bad("pubcomp flags", b"\x78\x02\x00\x01", "MQTT-2.2.2-2"),
    Bad("subscribe flags", b"\x80\x06\0\1\0\1t\0", "MQTT-3.8.1-1"),
    Bad("subscribe dup", b"\x8a\x06\0\1\0\1t\0", "MQTT-3.8.1-1"),
    Bad("unsubscribe flags", b"\xa0\x05\0\1\0\1t", "MQTT-3.10.1-1"),
    Bad("pingreq flags", b"\xc1\x00", "MQTT-2.2.2-2"),
    Bad("disconnect flags", b"\xe8\x00", "MQTT-3.14.1-1"),
    Bad("five length bytes", b"\x30\xff\xff\xff\xff\x01", "MQTT-4.8.0-1"),
    Bad("oversized", b"\x30\xff\xff\xff\x7f", "MQTT-4.8.0-1"),
    Bad("one byte too large", b"\x30\xfd\xb4\x18", "MQTT-4.8.0-1"),
    Bad("connect one byte too large", b"\x10\x92\x80\x14", "MQTT-4.8.0-1", after=b""),
    # CONNECT
    Bad("connect without a body", b"\x10\x00", "MQTT-3.1.2-1", after=b""),
    Bad("connect protocol name", connect(2, b"", head=b"\0\4HTTP\4"), "MQTT-3.1.2-1", after=b""),
    Bad("connect lower case", connect(2, b"", head=b"\0\4mqtt\4"), "MQTT-3.1.2-1", after=b""),
    Bad("connect name cut off", b"\x10\x05\0\4MQT", "MQTT-3.1.2-1", after=b""),
    Bad("connect name only", b"\x10\x06\0\4MQTT", "MQTT-4.8.0-1", after=b""),
    Bad(
        "connect level 5",
        connect(2, b"\0\0\1c", head=b"\0\4MQTT\5"),
        "MQTT-3.1.2-2",
        _LEVEL,
        after=b"",
    ),
    Bad(
        "connect level 3 of MQTT",
        connect(2, b"\0\1c", head=b"\0\4MQTT\3"),
        "MQTT-3.1.2-2",
        _LEVEL,
        after=b"",
    ),
    Bad(
        "connect level 4 of MQIsdp",
        connect(2, b"\0\1c", head=b"\0\6MQIsdp\4"),
        "MQTT-3.1.2-2",
        _LEVEL,
        after=b"",
    ),
    Bad("connect reserved flag", connect(3, b"\0\1c"), "MQTT-3.1.2-3", after=b""),
    Bad("connect will QoS 3", connect(0x1E, b"\0\1c\0\1w\0\0"), "MQTT-3.1.2-14", after=b""),
    Bad("connect will QoS, no will", connect(0x0A, b"\0\1c"), "MQTT-3.1.2-13", after=b""),
    Bad("connect will retain, no will", connect(0x22, b"\0\1c"), "MQTT-3.1.2-15", after=b""),
    Bad("connect will, none there", connect(0x06, b"\0\1c"), "MQTT-3.1.2-9", after=b""),
    Bad("connect will topic only", connect(0x06, b"\0\1c\0\1w"), "MQTT-3.1.2-9", after=b""),
    Bad("connect no will, one there", connect(2, b"\0\1c\0\1w\0\0"), "MQTT-4.8.0-1", after=b""),
    Bad("connect will wildcard", connect(6, b"\0\1c\0\1#\0\0"), "MQTT-3.3.2-2", after=b""),
    Bad("connect will topic empty", connect(6, b"\0\1c\0\0\0\0"), "MQTT-4.7.3-1", after=b""),
    Bad("connect will not UTF-8", connect(6, b"\0\1c\0\1\xff\0\0"), "MQTT-1.5.3-1", after=b""),
    Bad("connect user name, none there", connect(0x82, b"\0\1c"), "MQTT-3.1.2-19", after=b""),
    Bad("connect user name not UTF-8", connect(0x82, b"\0\1c\0\1\x80"), "MQTT-1.5.3-1", after=b""),
    Bad("connect user name U+0000", connect(0x82, b"\0\1c\0\1\0"), "MQTT-1.5.3-2", after=b""),
    Bad("connect password, none there", connect(0xC2, b"\0\1c\0\1u"), "MQTT-3.1.2-21", after=b""),
    Bad("connect password alone", connect(0x42, b"\0\1c\0\1p"), "MQTT-3.1.2-22", after=b""),
    Bad("connect trailing byte", connect(2, b"\0\1c\0"), "MQTT-4.8.0-1", after=b""),
    Bad("connect no client id", connect(2, b""), "MQTT-3.1.3-3", after=b""),
    Bad("connect client id cut off", connect(2, b"\0\2c"), "MQTT-3.1.3-3", after=b""),
    Bad("connect client id not UTF-8", connect(2, b"\0\2\xc3\x28"), "MQTT-1.5.3-1", after=b""),
    Bad("connect client id surrogate", connect(2, b"\0\3\xed\xa0\x80"), "MQTT-1.5.3-1", after=b""),
    Bad("connect client id overlong", connect(2, b"\0\2\xc0\x80"), "MQTT-1.5.3-1", after=b""),
    Bad("connect client id U+0000", connect(2, b"\0\2c\0"), "MQTT-1.5.3-2", after=b""),
    Bad("connect empty id, not clean", connect(0, b"\0\0"), "MQTT-3.1.3-8", _ID, after=b""),
    Bad("connect 3.1 empty id", connect(2, b"\0\0", head=OLD), "MQTT-3.1.3-8", _ID, after=b""),
    # PUBLISH
    Bad("publish QoS 3", b"\x36\x06\0\1t\0\1m", "MQTT-3.3.1-4"),
    Bad("publish QoS 3 dup retain", b"\x3f\x06\0\1t\0\1m", "MQTT-3.3.1-4"),
    Bad("publish dup at QoS 0", b"\x38\x04\0\1tm", "MQTT-3.3.1-2"),
    Bad("publish without a body", b"\x30\x00", "MQTT-4.8.0-1"),
    Bad("publish half a length", b"\x30\x01\x00", "MQTT-4.8.0-1"),
    Bad("publish topic cut off", b"\x30\x04\0\3ab", "MQTT-4.8.0-1"),
    Bad("publish without packet id", b"\x32\x04\0\1t\0", "MQTT-4.8.0-1"),
    Bad("publish empty topic", b"\x30\x03\0\0m", "MQTT-4.7.3-1"),
    Bad("publish +", b"\x30\x03\0\1+", "MQTT-3.3.2-2"),
    Bad("publish # inside", b"\x30\x05\0\3a#b", "MQTT-3.3.2-2"),
    Bad("publish topic not UTF-8", b"\x30\x03\0\1\xe9", "MQTT-1.5.3-1"),
    Bad("publish topic surrogate", b"\x30\x05\0\3\xed\xbf\xbf", "MQTT-1.5.3-1"),
    Bad("publish topic U+0000", b"\x30\x05\0\3a\0b", "MQTT-1.5.3-2"),
    Bad("publish packet id 0", b"\x32\x06\0\1t\0\0m", "MQTT-2.3.1-1"),
    # Acknowledgements
    Bad("puback without a body", b"\x40\x00", "MQTT-4.8.0-1"),
    Bad("puback too short", b"\x40\x01\x01", "MQTT-4.8.0-1"),
    Bad("pubrec too long", b"\x50\x03\x00\x01\x00", "MQTT-4.8.0-1"),
    Bad("puback packet id 0", b"\x40\x02\x00\x00", "MQTT-2.3.1-1"),
    Bad("pubrel packet id 0", b"\x62\x02\x00\x00", "MQTT-2.3.1-1"),
    # SUBSCRIBE, UNSUBSCRIBE
    Bad("subscribe without a body", b"\x82\x00", "MQTT-2.3.1-1"),
    Bad("subscribe packet id 0", b"\x82\x06\0\0\0\1t\0", "MQTT-2.3.1-1"),
    Bad("subscribe nothing", b"\x82\x02\0\1", "MQTT-3.8.3-3"),
    Bad("subscribe without QoS", b"\x82\x05\0\1\0\1t", "MQTT-4.8.0-1"),
    Bad("subscribe QoS 3", b"\x82\x06\0\1\0\1t\3", "MQTT-3.8.3-4"),
    Bad("subscribe reserved bits", b"\x82\x06\0\1\0\1t\x81", "MQTT-3.8.3-4"),
    Bad("subscribe filter cut off", b"\x82\x05\0\1\0\2t", "MQTT-4.8.0-1"),
    Bad("subscribe one byte over", b"\x82\x07\0\1\0\1t\0\0", "MQTT-4.8.0-1"),
    Bad("subscribe empty filter", b"\x82\x05\0\1\0\0\0", "MQTT-4.7.3-1"),
    Bad("subscribe not UTF-8", b"\x82\x06\0\1\0\1\xff\0", "MQTT-1.5.3-1"),
    Bad("subscribe U+0000", b"\x82\x06\0\1\0\1\0\0", "MQTT-1.5.3-2"),
    Bad("subscribe # not last", b"\x82\x08\0\1\0\3#/a\0", "MQTT-4.7.1-2"),
    Bad("subscribe # not alone", b"\x82\x07\0\1\0\2a#\0", "MQTT-4.7.1-2"),
    Bad("subscribe two #", b"\x82\x08\0\1\0\3#/#\0", "MQTT-4.7.1-2"),
    Bad("subscribe + not alone", b"\x82\x07\0\1\0\2a+\0", "MQTT-4.7.1-3"),
    Bad("subscribe +# ", b"\x82\x07\0\1\0\2+#\0", "MQTT-4.7.1-2"),
    Bad("unsubscribe without a body", b"\xa2\x00", "MQTT-2.3.1-1"),
    Bad("unsubscribe packet id 0", b"\xa2\x05\0\0\0\1t", "MQTT-2.3.1-1"),
    Bad("unsubscribe nothing", b"\xa2\x02\0\1", "MQTT-3.10.3-2"),
    Bad("unsubscribe filter", b"\xa2\x07\0\1\0\3#/a", "MQTT-4.7.1-2"),
    Bad("unsubscribe not UTF-8", b"\xa2\x05\0\1\0\1\xff", "MQTT-1.5.3-1"),
    Bad("unsubscribe cut off", b"\xa2\x05\0\1\0\2t", "MQTT-4.8.0-1"),
    # The rest
    Bad("pingreq with a body", b"\xc0\x01\x00", "MQTT-4.8.0-1"),
    Bad("disconnect with a body", b"\xe0\x01\x00", "MQTT-4.8.0-1"),
]
