"""Random faults between the broker and JetStream, with counters.

A ``Faults`` without rates is a NATS server without faults. All rates are probabilities of one
append, one request or one message; ``off()`` ends all faults permanently.
"""

import random
from collections import Counter
from collections.abc import Callable
from enum import Enum
from typing import Any


class Append(Enum):
    """What becomes of an append that reached the server."""

    STORED = "stored and acknowledged"
    LOST = "lost before it is stored"
    REFUSED = "refused: JetStream error"
    UNHEARD = "nobody responds"
    STORED_LATE = "stored late"
    STORED_TWICE = "delivered to the stream twice"
    ACK_LOST = "stored, acknowledgement lost"
    ACK_LATE = "stored, acknowledgement late"
    ACK_TWICE = "stored, acknowledged twice"


class Ask(Enum):
    """What becomes of a request."""

    ANSWERED = "answered"
    IGNORED = "request without an answer"
    REFUSED = "request refused: JetStream error"
    UNHEARD = "request: nobody responds"
    LATE = "request answered late"
    CUT_SHORT = "batch cut short"


ERRORS: list[dict[str, Any]] = [
    {"code": 503, "err_code": 10008, "description": "JetStream system temporarily unavailable"},
    {"code": 503, "err_code": 10077, "description": "maximum bytes exceeded"},
    {"code": 500, "err_code": 10049, "description": "write of store file failed"},
    {"code": 503, "err_code": 10023, "description": "insufficient resources"},
]


class Faults:
    """Decides by chance; ``counts`` says how often what was decided."""

    def __init__(
        self,
        chance: random.Random | None = None,
        *,
        appends: float = 0.0,
        asks: float = 0.0,
        strays: bool = False,
        delay: Callable[[], float] = lambda: 0.001,
        travel: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.chance = chance if chance is not None else random.Random(0)
        self.appends = appends
        self.asks = asks
        self.strays = strays
        """Appends of a dead process may be stored after its successor has read the stream,
        until one of the successor's is stored."""
        self.delay = delay
        """Seconds that the server takes, and its answer."""
        self.travel = travel
        """Seconds that a message takes to the server."""
        self.counts: Counter[str] = Counter()

    def off(self) -> None:
        """Let everything go well from now on."""
        self.appends = self.asks = 0.0

    def append(self) -> Append:
        """Decide on an append."""
        fate = Append.STORED
        if self.appends and self.chance.random() < self.appends:
            fate = self.chance.choice(_BAD_APPENDS)
        self.counts[fate.value] += 1
        return fate

    def ask(self) -> Ask:
        """Decide on a request."""
        fate = Ask.ANSWERED
        if self.asks and self.chance.random() < self.asks:
            fate = self.chance.choice(_BAD_ASKS)
        self.counts[fate.value] += 1
        return fate

    def error(self) -> dict[str, Any]:
        """Give one of JetStream's errors."""
        return self.chance.choice(ERRORS)

    def late(self) -> float:
        """Give the seconds by which something is late: from unnoticed to long after a resync."""
        return self.chance.choice([0.005, 0.05, 0.5, 4.0, 6.0, 20.0])


_BAD_APPENDS = [fate for fate in Append if fate is not Append.STORED]
_BAD_ASKS = [fate for fate in Ask if fate is not Ask.ANSWERED]
