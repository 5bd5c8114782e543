"""The one error that bytes from a client can cause."""

from protocol.errors import FoldmqError
from protocol.mqtt.packets import ConnectCode


class ProtocolError(FoldmqError):
    """A client broke the standard; its network connection must be closed [MQTT-4.8.0-1].

    ``text`` says what was wrong, ``statement`` is the number of the normative statement of
    MQTT 3.1.1 that was broken, and ``connack`` is the return code to be sent in a CONNACK before
    the connection is closed, or None when it is closed without a word.
    """

    def __init__(self, text: str, statement: str, connack: ConnectCode | None = None) -> None:
        super().__init__(f"{text} [{statement}]")
        self.text = text
        self.statement = statement
        self.connack = connack
