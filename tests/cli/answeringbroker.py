"""A broker that answers as a test says."""

from collections.abc import Callable
from typing import Any, cast

from nats.aio.client import Client

from cli.logs.broker_client import LiveBroker

Answers = dict[str, Any]


class AnsweringBroker(LiveBroker):
    """Answers with what a function returns, or raises it, and keeps what it was asked."""

    answer: Callable[[str, Answers], Answers]
    asked: list[tuple[str, Answers]]

    def __init__(self, answer: Callable[[str, Answers], Answers], log: str = "") -> None:
        super().__init__(log or "n1", "here", cast("Client", None), log)
        object.__setattr__(self, "answer", answer)
        object.__setattr__(self, "asked", [])

    async def ask(self, endpoint: str, /, **request: Any) -> Answers:
        self.asked.append((endpoint, request))
        return self.answer(endpoint, request)


class AnsweringClient:
    """A connection to NATS with one reply to all requests, or an error."""

    def __init__(self, outcome: bytes | Exception) -> None:
        self._outcome = outcome

    async def request(self, *_arguments: object, **_options: object) -> Any:
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return type("Reply", (), {"data": self._outcome})


def broker_with(outcome: bytes | Exception) -> LiveBroker:
    """Return a broker whose connection has this outcome of all requests."""
    return LiveBroker("n1", "here", cast("Client", AnsweringClient(outcome)))
