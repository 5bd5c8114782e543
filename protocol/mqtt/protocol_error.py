"""The only error that bytes from a client can cause."""

from protocol.errors import FoldmqError
from protocol.mqtt.packets import ConnectCode
from protocol.mqtt.reason_codes import ReasonCode


class ProtocolError(FoldmqError):
    """A client violated the standard; its network connection must be closed [MQTT-4.8.0-1].

    ``text`` describes the error, ``statement`` is the number of the violated normative statement,
    of MQTT 3.1.1 or, for an MQTT 5 client, of MQTT 5.0. ``connack`` is the return code to be sent
    in a CONNACK of MQTT 3.1.1 before the connection is closed, or None when it is closed without an
    answer; in MQTT 5 ``reason`` is sent, in a CONNACK or DISCONNECT [MQTT-4.13.1-1].
    """

    def __init__(
        self,
        text: str,
        statement: str,
        connack: ConnectCode | None = None,
        reason: ReasonCode = ReasonCode.MALFORMED_PACKET,
    ) -> None:
        super().__init__(f"{text} [{statement}]")
        self.text = text
        self.statement = statement
        self.connack = connack
        self.reason = reason
